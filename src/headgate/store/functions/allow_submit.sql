-- For the owner: let a role submit for a tenant, and grant it what it needs for that.
--     SELECT headgate.allow_submit('app', 'acme');
CREATE FUNCTION headgate.allow_submit(role name, tenant text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    v_function text;
BEGIN
    INSERT INTO headgate.role_tenants AS t (role, tenant) VALUES (role, tenant) ON CONFLICT DO NOTHING;
    EXECUTE format('GRANT USAGE ON SCHEMA headgate TO %I', role);
    FOR v_function IN SELECT p.oid::regprocedure FROM pg_proc p
                       WHERE p.pronamespace = 'headgate'::regnamespace AND p.proname IN ('submit', 'submit_returning') LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', v_function, role);
    END LOOP;
END $$;
