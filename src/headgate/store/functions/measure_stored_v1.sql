-- Measures the bytes of payloads and results by tenant, while some tenant has a quota for them: jobs, payloads and the newest day of
-- the archive each time, and of the older days those that were measured longest ago, days_ of them. A table of up to pages_ pages is
-- read whole, of a larger one a random sample of about so many, from which its bytes are estimated: the cost is bounded
-- whatever is stored. One instance at a time. Returns how many tables were measured.
CREATE FUNCTION headgate.measure_stored_v1(pages_ int, days_ int) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_part  record;
    v_share float8;
    v_count int := 0;
BEGIN
    IF NOT EXISTS (SELECT FROM headgate.tenants t WHERE t.max_stored_bytes IS NOT NULL)
       OR NOT pg_try_advisory_xact_lock(4847423, 6 /* stored_bytes */) THEN
        RETURN 0;
    END IF;
    -- Days that were removed.
    DELETE FROM headgate.stored_parts s
     WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = 'headgate'::regnamespace AND c.relname = s.part);
    FOR v_part IN
        WITH days AS (
            SELECT c.relname::text AS name, row_number() OVER (ORDER BY c.relname DESC) AS nth,
                   (SELECT min(s.at) FROM headgate.stored_parts s WHERE s.part = c.relname) AS at
              FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
             WHERE i.inhparent = 'headgate.archive'::regclass
               AND c.relname <= 'archive_' || to_char(headgate.clock_v1() AT TIME ZONE 'UTC', 'YYYYMMDD'))
        SELECT 'jobs' AS name, 'coalesce(octet_length(payload), 0)' AS bytes
         UNION ALL SELECT 'payloads', 'octet_length(payload)'
         UNION ALL SELECT d.name, 'coalesce(octet_length(payload), 0) + coalesce(octet_length(result), 0)' FROM days d
                    WHERE d.nth = 1
         UNION ALL (SELECT d.name, 'coalesce(octet_length(payload), 0) + coalesce(octet_length(result), 0)' FROM days d
                     WHERE d.nth > 1 ORDER BY d.at NULLS FIRST, d.name LIMIT days_)
    LOOP
        v_share := least(100, 100.0 * pages_ * current_setting('block_size')::int
                              / greatest(1, pg_relation_size(format('headgate.%I', v_part.name)::regclass)));
        DELETE FROM headgate.stored_parts s WHERE s.part = v_part.name;
        EXECUTE format('INSERT INTO headgate.stored_parts (part, tenant_no, bytes, at) '
                       'SELECT $1, tenant_no, (sum(%s) * 100 / $2)::bigint, headgate.clock_v1() '
                       'FROM headgate.%I TABLESAMPLE SYSTEM ($2) GROUP BY tenant_no', v_part.bytes, v_part.name)
          USING v_part.name, v_share;
        -- A day without jobs was measured, too.
        INSERT INTO headgate.stored_parts (part, tenant_no, bytes, at) VALUES (v_part.name, 0, 0, headgate.clock_v1());
        v_count := v_count + 1;
    END LOOP;
    UPDATE headgate.tenants t SET stored_bytes = n.bytes, stored_at = headgate.clock_v1()
      FROM (SELECT u.tenant_no, coalesce(sum(s.bytes), 0)::bigint AS bytes
              FROM headgate.tenants u LEFT JOIN headgate.stored_parts s ON s.tenant_no = u.tenant_no
             WHERE u.max_stored_bytes IS NOT NULL GROUP BY 1) AS n
     WHERE t.tenant_no = n.tenant_no;
    RETURN v_count;
END $$;
