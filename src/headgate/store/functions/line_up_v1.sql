-- These blocked jobs with a key have become due: put them into their key's line, and admit those that may run.
CREATE FUNCTION headgate.line_up_v1(tenant_ int, ids_ uuid[]) RETURNS SETOF int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_topics int[];
    v_keys   text[];
BEGIN
    SELECT array_agg(s.topic_no), array_agg(s.limit_key) INTO v_topics, v_keys
      FROM (SELECT DISTINCT k.topic_no, k.limit_key
              FROM (SELECT j.id FROM headgate.jobs j
                     WHERE j.tenant_no = tenant_ AND j.id = ANY (ids_) AND j.state + 0 = 4 /* blocked */
                        AND j.flags & 256 /* waits */ = 0 OFFSET 0) AS j
             CROSS JOIN LATERAL (SELECT k.topic_no, k.limit_key FROM headgate.job_limit_keys k
                                  WHERE k.tenant_no = tenant_ AND k.job_id = j.id LIMIT 1) AS k
             ORDER BY 1, 2) AS s;
    IF v_topics IS NULL THEN RETURN; END IF;      -- none is blocked: no key's row is touched
    -- Made or locked, in one pass and one order: WHERE false locks the row and writes nothing.
    INSERT INTO headgate.limit_usage AS u (tenant_no, topic_no, limit_key)
    SELECT tenant_, t.topic_no, t.limit_key FROM unnest(v_topics, v_keys) AS t(topic_no, limit_key)
    ON CONFLICT (topic_no, limit_key) DO UPDATE SET running = u.running WHERE false;
    INSERT INTO headgate.limit_line (tenant_no, job_id, topic_no, limit_key, rank_class, rank_at)
    SELECT tenant_, j.id, k.topic_no, k.limit_key, j.rank_class, j.rank_at
      FROM (SELECT j.id, j.rank_class, j.rank_at FROM headgate.jobs j
             WHERE j.tenant_no = tenant_ AND j.id = ANY (ids_) AND j.state + 0 = 4 /* blocked */
                AND j.flags & 256 /* waits */ = 0 OFFSET 0) AS j
     CROSS JOIN LATERAL (SELECT k.topic_no, k.limit_key FROM headgate.job_limit_keys k
                          WHERE k.tenant_no = tenant_ AND k.job_id = j.id LIMIT 1) AS k
    ON CONFLICT (tenant_no, job_id) DO NOTHING;
    RETURN QUERY SELECT a.topic_no FROM headgate.admit_v1(tenant_, v_topics, v_keys) AS a;
END $$;
