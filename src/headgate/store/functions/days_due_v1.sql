-- Days of the archive in which something may be old, oldest first: `due` when a walk is to be made or to go on, `empty`
-- when nothing is left in it. Days that are old as a whole are not among them: see clear_and_drop.
CREATE FUNCTION headgate.days_due_v1() RETURNS TABLE (day date, due boolean, empty boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_now    timestamptz := headgate.clock_v1();
    v_bounds record;
BEGIN
    SELECT b.shortest_ms, b.longest_ms INTO v_bounds FROM headgate.keep_bounds_v1() AS b;
    RETURN QUERY
    WITH attached AS MATERIALIZED (      -- a name is read as a date only when it is known to be that of a partition
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'headgate.archive'::regclass AND c.relname ~ '^archive_[0-9]{8}$' AND NOT i.inhdetachpending)
    SELECT p.day,
           NOT coalesce(r.done AND r.rules = f.rules OR r.rest_until > v_now, false),
           coalesce(r.done AND r.empty AND r.rules = f.rules, false)
      FROM (SELECT to_date(right(a.relname, 8), 'YYYYMMDD') AS day FROM attached a) AS p
     CROSS JOIN LATERAL (SELECT (p.day + 1)::timestamp AT TIME ZONE 'UTC' AS ended) AS e
     CROSS JOIN LATERAL (SELECT headgate.rules_due_v1(p.day) AS rules) AS f
      LEFT JOIN headgate.retention_days r ON r.day = p.day
     WHERE e.ended <= v_now - v_bounds.shortest_ms * interval '1 ms' AND e.ended > v_now - v_bounds.longest_ms * interval '1 ms'
       AND f.rules IS NOT NULL
     ORDER BY p.day;
END $$;
