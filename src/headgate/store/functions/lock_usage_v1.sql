-- Locks what jobs of one tenant use: their topics' rows (of those counted there), then their keys'.
CREATE FUNCTION headgate.lock_usage_v1(tenant_ int, topics_ int[], ids_ uuid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
BEGIN
    PERFORM FROM (SELECT DISTINCT t FROM unnest(topics_) AS t ORDER BY t) AS t(topic_no)
      CROSS JOIN LATERAL (SELECT FROM headgate.limit_usage u WHERE u.topic_no = t.topic_no AND u.limit_key = '' FOR UPDATE) AS u;
    PERFORM FROM (SELECT DISTINCT k.topic_no, k.limit_key FROM headgate.job_limit_keys k
                   WHERE k.tenant_no = tenant_ AND k.job_id = ANY (ids_) ORDER BY 1, 2) AS k
      CROSS JOIN LATERAL (SELECT FROM headgate.limit_usage u
                           WHERE u.topic_no = k.topic_no AND u.limit_key = k.limit_key FOR UPDATE) AS u;
END $$;
