-- These jobs with a key, locked by the caller, are about to leave or have left the queue without having run (cancelled, or
-- moved away). admitted_: those of them that were pending. With reline_ they stay, and only their rank has changed.
CREATE FUNCTION headgate.left_line_v1(tenant_ int, ids_ uuid[], admitted_ uuid[], reline_ boolean) RETURNS SETOF int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off
SET enable_nestloop = on SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_topics int[];
    v_keys   text[];
BEGIN
    PERFORM headgate.lock_usage_v1(tenant_, '{}', ids_);
    IF reline_ THEN
        UPDATE headgate.limit_line w SET rank_class = j.rank_class, rank_at = j.rank_at
          FROM (SELECT j.id, j.rank_class, j.rank_at FROM headgate.jobs j
                 WHERE j.tenant_no = tenant_ AND j.id = ANY (ids_) OFFSET 0) AS j
         WHERE w.tenant_no = tenant_ AND w.job_id = j.id;
    ELSE
        DELETE FROM headgate.limit_line w WHERE w.tenant_no = tenant_ AND w.job_id = ANY (ids_);
    END IF;
    WITH given AS MATERIALIZED (
        SELECT k.topic_no, k.limit_key, count(*) FILTER (WHERE k.job_id = ANY (admitted_)) AS n
          FROM headgate.job_limit_keys k WHERE k.tenant_no = tenant_ AND k.job_id = ANY (ids_) GROUP BY 1, 2),
    counted AS (
        UPDATE headgate.limit_usage u
           SET admitted = u.admitted - t.n, holder = CASE WHEN u.holder = ANY (ids_) THEN NULL ELSE u.holder END
          FROM given t WHERE NOT reline_ AND u.topic_no = t.topic_no AND u.limit_key = t.limit_key)
    SELECT array_agg(t.topic_no), array_agg(t.limit_key) INTO v_topics, v_keys FROM given t;
    RETURN QUERY SELECT a.topic_no FROM headgate.admit_v1(tenant_, coalesce(v_topics, '{}'), v_keys) AS a;
END $$;
