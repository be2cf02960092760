-- Row-level security, the second wall between tenants (ADR 47). A connection with the role headgate_tenant sees and changes
-- the rows of the tenant in the setting headgate.tenant_no, and none without it. The owner, headgate_runtime and
-- headgate_reader have all rows: flushes mix tenants. Their policy is the constant true, which leaves nothing in a plan.
--
-- Run by `headgate migrate` each time, and changes only what is not as it should be: a policy takes an exclusive lock. A table
-- with a column tenant_no is covered by that alone; tests/integration/test_row_security.py lists the tables that are not covered.
CREATE FUNCTION headgate.row_security_v1() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_table  record;
    v_policy record;
    v_tenant oid := to_regrole('headgate_tenant');
BEGIN
    FOR v_table IN
        WITH tables AS (
            SELECT c.oid, c.relname, c.relowner, c.relrowsecurity AND c.relforcerowsecurity AS forced,
                   (SELECT array_agg(a.attname) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0) AS columns
              FROM pg_class c
             WHERE c.relnamespace = 'headgate'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
               AND c.relname <> 'retention_days')               -- its tenant_no is how far a walk over all tenants is
        SELECT t.oid, t.relname, t.relowner, t.forced, CASE
               WHEN 'tenant_no' = ANY (t.columns)
               THEN 'tenant_no = nullif(current_setting(''headgate.tenant_no'', true), '''')::int'
               WHEN 'topic_no' = ANY (t.columns)
               THEN format('EXISTS (SELECT FROM headgate.topics p WHERE p.topic_no = %I.topic_no)', t.relname)
               WHEN 'webhook_no' = ANY (t.columns)
               THEN format('EXISTS (SELECT FROM headgate.webhooks p WHERE p.webhook_no = %I.webhook_no)', t.relname)
               WHEN 'delivery_no' = ANY (t.columns)
               THEN format('EXISTS (SELECT FROM headgate.webhook_deliveries p WHERE p.delivery_no = %I.delivery_no)', t.relname)
               END AS condition
          FROM tables t
         WHERE t.columns && ARRAY['tenant_no', 'topic_no', 'webhook_no', 'delivery_no']::name[]
         ORDER BY t.relname
    LOOP
        IF NOT v_table.forced THEN
            EXECUTE format('ALTER TABLE headgate.%I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', v_table.relname);
        END IF;
        FOR v_policy IN
            SELECT p.name, p.command, p.condition, p.roles
              FROM (VALUES ('all_tenants', 'ALL', 'true',
                            ARRAY(SELECT r.oid FROM unnest(ARRAY[v_table.relowner, to_regrole('headgate_runtime')::oid,
                                                                 to_regrole('headgate_reader')::oid]) AS r(oid)
                                   WHERE r.oid IS NOT NULL)),
                           ('one_tenant', 'ALL', v_table.condition, ARRAY[v_tenant]),
                           -- What concerns all tenants has the number 0, and is theirs to read.
                           ('shared_rows', 'SELECT',
                            CASE v_table.relname
                            WHEN 'audit' THEN
                                -- Only these: a verb is not shown to tenants before it is added here and in audit.py.
                                $c$tenant_no = 0 AND verb IN ('pause', 'resume', 'set_retention', 'set_tenant_defaults')$c$
                            WHEN 'dispatch_control' THEN 'tenant_no = 0'
                            WHEN 'flow_buckets' THEN 'tenant_no = 0'      -- when a server was running
                            WHEN 'retry_policies' THEN 'tenant_no = 0' END, ARRAY[v_tenant])) AS p(name, command, condition, roles)
             WHERE p.condition IS NOT NULL AND p.roles <> ARRAY[NULL::oid]
               AND NOT EXISTS (SELECT FROM pg_policy f
                                WHERE f.polrelid = v_table.oid AND f.polname = p.name
                                  AND f.polroles @> p.roles AND p.roles @> f.polroles)
        LOOP
            EXECUTE format('DROP POLICY IF EXISTS %I ON headgate.%I', v_policy.name, v_table.relname);
            EXECUTE format('CREATE POLICY %I ON headgate.%I FOR %s TO %s USING (%s)%s', v_policy.name, v_table.relname,
                           v_policy.command,
                           (SELECT string_agg(quote_ident(r.rolname), ', ') FROM pg_roles r WHERE r.oid = ANY (v_policy.roles)),
                           v_policy.condition,
                           CASE v_policy.command WHEN 'ALL' THEN format(' WITH CHECK (%s)', v_policy.condition) END);
        END LOOP;
    END LOOP;
END $$;
