-- The number of a tenant, made on first use.
CREATE FUNCTION headgate.intern_tenant_v1(name_ text) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_no int;
BEGIN
    SELECT t.tenant_no INTO v_no FROM headgate.tenants t WHERE t.name = name_;
    IF v_no IS NULL THEN
        INSERT INTO headgate.tenants (name, max_topics, max_policies, submit_rate, max_backlog, max_stored_bytes,
                                      max_payload_bytes, max_sessions, max_schedules, max_webhooks)
        SELECT name_, d.max_topics, d.max_policies, d.submit_rate, d.max_backlog, d.max_stored_bytes,
               d.max_payload_bytes, d.max_sessions, d.max_schedules, d.max_webhooks
          FROM headgate.tenant_defaults d
        ON CONFLICT (name) DO NOTHING;
        SELECT t.tenant_no INTO v_no FROM headgate.tenants t WHERE t.name = name_;   -- also when another one won
    END IF;
    RETURN v_no;
END $$;
