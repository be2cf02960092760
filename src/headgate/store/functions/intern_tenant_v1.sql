-- The number of a tenant, made on first use.
CREATE FUNCTION headgate.intern_tenant_v1(name_ text) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_no int;
BEGIN
    SELECT t.tenant_no INTO v_no FROM headgate.tenants t WHERE t.name = name_;
    IF v_no IS NULL THEN
        INSERT INTO headgate.tenants (name) VALUES (name_) ON CONFLICT (name) DO NOTHING;
        SELECT t.tenant_no INTO v_no FROM headgate.tenants t WHERE t.name = name_;   -- also when another one won
    END IF;
    RETURN v_no;
END $$;
