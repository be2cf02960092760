-- For applications: submit a job inside your own transaction, from any language, with a body of bytes or JSON.
--     SELECT headgate.submit('send-email', '{"to": "a@b.example"}'::jsonb, priority => 10);
-- Returns the job's id; all else is described in submit_returning.sql.
CREATE FUNCTION headgate.submit(
    topic text, payload bytea, tenant text DEFAULT 'default', priority int DEFAULT NULL, delay interval DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, max_attempts int DEFAULT NULL, key text DEFAULT NULL,
    key_window interval DEFAULT '24 hours', id uuid DEFAULT NULL, headers jsonb DEFAULT NULL, tags text[] DEFAULT '{}',
    limit_key text DEFAULT NULL, deadline timestamptz DEFAULT NULL, unique_key text DEFAULT NULL,
    on_conflict text DEFAULT 'keep', debounce_max interval DEFAULT NULL, depends_on uuid[] DEFAULT '{}',
    needs text DEFAULT 'succeeded', on_parent_failure text DEFAULT 'cancel', batch uuid DEFAULT NULL,
    retry jsonb DEFAULT NULL)
RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    RETURN (SELECT s.job_id FROM headgate.submit_returning(
                topic, payload, tenant, priority, delay, run_at, max_attempts, key, key_window, id, headers,
                tags, limit_key, deadline, unique_key, on_conflict, debounce_max, depends_on, needs, on_parent_failure, batch,
                retry) AS s);
END $$;

CREATE FUNCTION headgate.submit(
    topic text, payload jsonb, tenant text DEFAULT 'default', priority int DEFAULT NULL, delay interval DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, max_attempts int DEFAULT NULL, key text DEFAULT NULL,
    key_window interval DEFAULT '24 hours', id uuid DEFAULT NULL, headers jsonb DEFAULT NULL, tags text[] DEFAULT '{}',
    limit_key text DEFAULT NULL, deadline timestamptz DEFAULT NULL, unique_key text DEFAULT NULL,
    on_conflict text DEFAULT 'keep', debounce_max interval DEFAULT NULL, depends_on uuid[] DEFAULT '{}',
    needs text DEFAULT 'succeeded', on_parent_failure text DEFAULT 'cancel', batch uuid DEFAULT NULL,
    retry jsonb DEFAULT NULL)
RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    RETURN (SELECT s.job_id FROM headgate.submit_returning(
                topic, convert_to(payload::text, 'UTF8'), tenant, priority, delay, run_at, max_attempts, key, key_window, id,
                headers, tags, limit_key, deadline, unique_key, on_conflict, debounce_max, depends_on, needs, on_parent_failure, batch,
                retry) AS s);
END $$;
