-- Whether the caller of a SECURITY DEFINER function may submit for a tenant. There, current_user is the owner: the caller
-- is the role that was SET, or else the one that logged in. Members of the owner and of the runtime may for all tenants,
-- since they may write the tables. Not granted to anyone: headgate.submit calls it as the owner.
CREATE FUNCTION headgate.may_submit_v1(tenant_ text) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_caller name := coalesce(nullif(current_setting('role'), 'none'), session_user);
BEGIN
    RETURN EXISTS (SELECT FROM headgate.role_tenants t JOIN pg_roles r ON r.rolname = t.role
                    WHERE t.tenant = tenant_ AND pg_has_role(v_caller, r.oid, 'USAGE'))
        OR pg_has_role(v_caller, (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'headgate'), 'USAGE')
        OR coalesce(pg_has_role(v_caller, to_regrole('headgate_runtime'), 'USAGE'), false);
END $$;
