-- Counters that are wrong, and by how much: one statement, and so one snapshot, in which jobs and counters must agree.
CREATE FUNCTION headgate.limit_drift_v1()
RETURNS TABLE (tenant_no int, topic_no int, limit_key text, running int, admitted int)
LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
    WITH held AS MATERIALIZED (
        SELECT j.tenant_no, j.topic_no, j.id, j.flags, j.state FROM headgate.jobs j
         WHERE j.state = 1 /* running */ AND j.flags & 132 /* limit_key | counted */ <> 0
        UNION ALL
        SELECT j.tenant_no, j.topic_no, j.id, j.flags, j.state
          FROM (SELECT DISTINCT u.topic_no FROM headgate.limit_usage u WHERE u.limit_key > '') AS t
         CROSS JOIN LATERAL (SELECT j.tenant_no, j.topic_no, j.id, j.flags, j.state FROM headgate.jobs j
                              WHERE j.topic_no = t.topic_no AND j.state = 0 /* pending */
                                 AND j.flags & 4 /* limit_key */ <> 0) AS j),
    truth AS (
        SELECT h.tenant_no, h.topic_no, '' AS limit_key, count(*)::int AS running, 0 AS admitted
          FROM held h WHERE h.state = 1 /* running */ AND h.flags & 128 /* counted */ <> 0 GROUP BY 1, 2
        UNION ALL
        SELECT h.tenant_no, k.topic_no, k.limit_key, count(*) FILTER (WHERE h.state = 1 /* running */)::int,
               count(*) FILTER (WHERE h.state = 0 /* pending */)::int
          FROM held h
         CROSS JOIN LATERAL (SELECT k.topic_no, k.limit_key FROM headgate.job_limit_keys k
                              WHERE k.tenant_no = h.tenant_no AND k.job_id = h.id LIMIT 1) AS k
         WHERE h.flags & 4 /* limit_key */ <> 0 GROUP BY 1, 2, 3)
    SELECT coalesce(t.tenant_no, u.tenant_no), coalesce(t.topic_no, u.topic_no), coalesce(t.limit_key, u.limit_key),
           coalesce(t.running, 0) - coalesce(u.running, 0), coalesce(t.admitted, 0) - coalesce(u.admitted, 0)
      FROM truth t
      FULL JOIN (SELECT u.tenant_no, u.topic_no, u.limit_key, u.running, u.admitted FROM headgate.limit_usage u) AS u
        ON u.topic_no = t.topic_no AND u.limit_key = t.limit_key
     WHERE coalesce(t.running, 0) <> coalesce(u.running, 0) OR coalesce(t.admitted, 0) <> coalesce(u.admitted, 0)
$$;
