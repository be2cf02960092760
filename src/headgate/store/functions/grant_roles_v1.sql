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
    -- A function that a migration has replaced is a new one, which nobody may call.
    PERFORM headgate.allow_submit(t.role, t.tenant) FROM headgate.role_tenants t JOIN pg_roles r ON r.rolname = t.role;
END $$;
