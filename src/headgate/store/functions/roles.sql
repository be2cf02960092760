-- Who may do what in the database (ADR 26). The owner of the schema migrates; servers log in as members of headgate_runtime,
-- people who look as members of headgate_reader, applications as roles of their own that may call headgate.submit only.

-- Grants all that the two group roles need, as far as they exist, and leaves nothing to PUBLIC. Run by `headgate migrate`
-- each time: PostgreSQL gives every new function to PUBLIC, and default privileges of a schema cannot take that back.
-- With the rights of its caller, who must own the schema.
CREATE FUNCTION headgate.grant_roles_v1() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    REVOKE ALL ON SCHEMA headgate FROM PUBLIC;
    REVOKE ALL ON ALL TABLES IN SCHEMA headgate FROM PUBLIC;
    REVOKE ALL ON ALL SEQUENCES IN SCHEMA headgate FROM PUBLIC;
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA headgate FROM PUBLIC;
    IF to_regrole('headgate_runtime') IS NOT NULL THEN
        GRANT USAGE ON SCHEMA headgate TO headgate_runtime;
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA headgate TO headgate_runtime;
        GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA headgate TO headgate_runtime;
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA headgate TO headgate_runtime;
        -- New days of archive and job_events are read by their own names, too.
        ALTER DEFAULT PRIVILEGES IN SCHEMA headgate GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO headgate_runtime;
        -- A server changes neither the schema nor who may submit.
        REVOKE INSERT, UPDATE, DELETE ON headgate.migrations, headgate.role_tenants FROM headgate_runtime;
        REVOKE EXECUTE ON FUNCTION headgate.grant_roles_v1(), headgate.allow_submit(name, text),
                                   headgate.disallow_submit(name, text) FROM headgate_runtime;
        IF current_setting('server_version_num')::int >= 170000 THEN      -- before, only an owner may vacuum
            EXECUTE 'GRANT MAINTAIN ON ALL TABLES IN SCHEMA headgate TO headgate_runtime';
            EXECUTE 'ALTER DEFAULT PRIVILEGES IN SCHEMA headgate GRANT MAINTAIN ON TABLES TO headgate_runtime';
        END IF;
    END IF;
    IF to_regrole('headgate_reader') IS NOT NULL THEN
        GRANT USAGE ON SCHEMA headgate TO headgate_reader;
        GRANT SELECT ON ALL TABLES IN SCHEMA headgate TO headgate_reader;
        ALTER DEFAULT PRIVILEGES IN SCHEMA headgate GRANT SELECT ON TABLES TO headgate_reader;
    END IF;
END $$;

-- Which roles may submit for which tenants by headgate.submit. A role's members may, too.
CREATE TABLE headgate.role_tenants (
    role    name NOT NULL,
    tenant  text NOT NULL CHECK (tenant ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    PRIMARY KEY (role, tenant)
);

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
                       WHERE p.pronamespace = 'headgate'::regnamespace AND p.proname = 'submit' LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', v_function, role);
    END LOOP;
END $$;

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
                       WHERE p.pronamespace = 'headgate'::regnamespace AND p.proname = 'submit' LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM %I', v_function, role);
    END LOOP;
END $$;

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
