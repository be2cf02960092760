-- Grants all that the group roles need, as far as they exist, and leaves nothing to PUBLIC. Run by `headgate migrate`
-- each time: PostgreSQL gives every new function to PUBLIC, and default privileges of a schema cannot take that back.
-- With the rights of its caller, who must own the schema.
CREATE FUNCTION headgate.grant_roles_v1() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_one text;
BEGIN
    PERFORM headgate.row_security_v1();
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
        REVOKE EXECUTE ON FUNCTION headgate.grant_roles_v1(), headgate.row_security_v1(), headgate.allow_submit(name, text),
                                   headgate.disallow_submit(name, text) FROM headgate_runtime;
        IF current_setting('server_version_num')::int >= 170000 THEN      -- before, only an owner may vacuum
            EXECUTE 'GRANT MAINTAIN ON ALL TABLES IN SCHEMA headgate TO headgate_runtime';
            EXECUTE 'ALTER DEFAULT PRIVILEGES IN SCHEMA headgate GRANT MAINTAIN ON TABLES TO headgate_runtime';
        END IF;
    END IF;
    IF to_regrole('headgate_reader') IS NOT NULL THEN
        GRANT USAGE ON SCHEMA headgate TO headgate_reader;
        GRANT SELECT ON ALL TABLES IN SCHEMA headgate TO headgate_reader;
        IF to_regclass('headgate.webhook_secrets') IS NOT NULL THEN       -- what receivers trust
            REVOKE ALL ON headgate.webhook_secrets FROM headgate_reader;
        END IF;
        IF to_regclass('headgate.api_keys') IS NOT NULL THEN      -- digests of keys concern no one who only reads
            REVOKE SELECT ON headgate.api_keys FROM headgate_reader;
        END IF;
        IF to_regclass('headgate.web_sessions') IS NOT NULL THEN
            REVOKE SELECT ON headgate.web_sessions FROM headgate_reader;
        END IF;
        ALTER DEFAULT PRIVILEGES IN SCHEMA headgate GRANT SELECT ON TABLES TO headgate_reader;
    END IF;
    IF to_regrole('headgate_tenant') IS NOT NULL THEN      -- of servers, while they work for one tenant
        GRANT USAGE ON SCHEMA headgate TO headgate_tenant;
        GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA headgate TO headgate_tenant;
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA headgate TO headgate_tenant;
        -- Of what has rows of all tenants in one, or of none, it reads; and no partition by its own name: policies are those of
        -- the table that a statement names.
        FOR v_one IN SELECT format('GRANT SELECT%s ON headgate.%I TO headgate_tenant',
                                   CASE WHEN c.relrowsecurity THEN ', INSERT, UPDATE, DELETE'
                                        WHEN c.relname = 'key_changes' THEN ', UPDATE' END, c.relname)     -- by a trigger
                       FROM pg_class c
                      WHERE c.relnamespace = 'headgate'::regnamespace AND c.relkind IN ('r', 'p', 'v')
                        AND NOT c.relispartition AND c.relname NOT IN ('migrations', 'role_tenants') LOOP
            EXECUTE v_one;
        END LOOP;
        -- Those with the rights of their owner would leave the tenant.
        FOR v_one IN SELECT format('REVOKE EXECUTE ON FUNCTION %s FROM headgate_tenant', p.oid::regprocedure)
                       FROM pg_proc p
                      WHERE p.pronamespace = 'headgate'::regnamespace
                        AND (p.prosecdef AND p.proname <> 'first_live_v1'       -- it looks at the tenant itself
                             OR p.proname IN ('grant_roles_v1', 'row_security_v1', 'allow_submit', 'disallow_submit')) LOOP
            EXECUTE v_one;
        END LOOP;
    END IF;
    -- A function that a migration has replaced is a new one, which no one may call.
    PERFORM headgate.allow_submit(t.role, t.tenant) FROM headgate.role_tenants t JOIN pg_roles r ON r.rolname = t.role;
END $$;
