-- These jobs have left `running` (with the flag limit_key or counted): wherever they are now, live or in the archive since at_, what
-- they used is free. Says which topics may have capacity now.
CREATE FUNCTION headgate.left_running_v1(tenant_ int, ids_ uuid[], at_ timestamptz) RETURNS SETOF int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off
SET enable_nestloop = on SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_counted int[];               -- a topic for each job that counted there
    v_keyed   uuid[];
    v_ended   uuid[];
    v_due     uuid[];
    v_topics  int[];
    v_keys    text[];
BEGIN
    SELECT array_agg(f.topic_no) FILTER (WHERE f.flags & 128 /* counted */ <> 0),
           array_agg(f.id) FILTER (WHERE f.flags & 4 /* limit_key */ <> 0),
           array_agg(f.id) FILTER (WHERE f.flags & 4 /* limit_key */ <> 0 AND f.state >= 5 /* completed */),
           array_agg(f.id) FILTER (WHERE f.flags & 4 /* limit_key */ <> 0 AND f.state = 4 /* blocked */)
      INTO v_counted, v_keyed, v_ended, v_due
      FROM ((SELECT j.id, j.topic_no, j.flags, j.state FROM headgate.jobs j
              WHERE j.tenant_no = tenant_ AND j.id = ANY (ids_) OFFSET 0)
             UNION ALL
            (SELECT a.id, a.topic_no, a.flags, a.state FROM headgate.archive a
              WHERE a.tenant_no = tenant_ AND a.id = ANY (ids_) AND a.finished_at = at_ OFFSET 0)) AS f;
    PERFORM headgate.lock_usage_v1(tenant_, v_counted, v_keyed);
    IF v_counted IS NOT NULL THEN
        UPDATE headgate.limit_usage u SET running = u.running - c.n
          FROM (SELECT t.topic_no, count(*) AS n FROM unnest(v_counted) AS t(topic_no) GROUP BY 1) AS c
         WHERE u.topic_no = c.topic_no AND u.limit_key = '';
    END IF;
    IF v_keyed IS NOT NULL THEN
        WITH freed AS MATERIALIZED (
            SELECT k.topic_no, k.limit_key, count(*) AS n FROM headgate.job_limit_keys k
             WHERE k.tenant_no = tenant_ AND k.job_id = ANY (v_keyed) GROUP BY 1, 2),
        counted AS (
            UPDATE headgate.limit_usage u
               SET running = u.running - f.n, holder = CASE WHEN u.holder = ANY (v_ended) THEN NULL ELSE u.holder END
              FROM freed f WHERE u.topic_no = f.topic_no AND u.limit_key = f.limit_key)
        SELECT array_agg(f.topic_no), array_agg(f.limit_key) INTO v_topics, v_keys FROM freed f;
        IF v_due IS NOT NULL THEN      -- due again at once: back into the line
            INSERT INTO headgate.limit_line (tenant_no, job_id, topic_no, limit_key, rank_class, rank_at)
            SELECT tenant_, j.id, k.topic_no, k.limit_key, j.rank_class, j.rank_at
              FROM (SELECT j.id, j.rank_class, j.rank_at FROM headgate.jobs j
                     WHERE j.tenant_no = tenant_ AND j.id = ANY (v_due) OFFSET 0) AS j
             CROSS JOIN LATERAL (SELECT k.topic_no, k.limit_key FROM headgate.job_limit_keys k
                                  WHERE k.tenant_no = tenant_ AND k.job_id = j.id LIMIT 1) AS k
            ON CONFLICT (tenant_no, job_id) DO NOTHING;
        END IF;
    END IF;
    RETURN QUERY SELECT t.topic_no FROM unnest(v_counted) AS t(topic_no)
                 UNION
                 SELECT a.topic_no FROM headgate.admit_v1(tenant_, coalesce(v_topics, '{}'), v_keys) AS a;
END $$;
