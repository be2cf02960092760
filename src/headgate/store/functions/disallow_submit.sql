-- For the owner: take that back. With its last tenant the role loses the function as well.
CREATE FUNCTION headgate.disallow_submit(role name, tenant text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    v_function text;
BEGIN
    DELETE FROM headgate.role_tenants t WHERE t.role = role AND t.tenant = tenant;
    IF EXISTS (SELECT FROM headgate.role_tenants t WHERE t.role = role) OR to_regrole(quote_ident(role)) IS NULL THEN
        RETURN;
    END IF;
    FOR v_function IN SELECT p.oid::regprocedure FROM pg_proc p
                       WHERE p.pronamespace = 'headgate'::regnamespace AND p.proname IN ('submit', 'submit_returning') LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM %I', v_function, role);
    END LOOP;
END $$;
