-- Writes a topic's limits. The pause lock waits for the claims in flight and keeps out new ones until this commits, so that
-- what runs now is counted exactly, and no claim goes by the old limits afterwards. Nothing that runs is ended.
CREATE FUNCTION headgate.set_limits_v1(
    topic_ int, max_running_ int, rate_count_ int, rate_period_ms_ bigint, rate_burst_ int, max_running_per_key_ int,
    key_rate_count_ int, key_rate_period_ms_ bigint, key_rate_burst_ int, ordered_by_key_ boolean, fair_by_key_ boolean,
    max_backlog_ bigint)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_tenant int;
    v_was    boolean;
    v_is     boolean;
    v_ids    uuid[];
BEGIN
    PERFORM pg_advisory_xact_lock(4847423, 1);
    SELECT t.tenant_no INTO STRICT v_tenant FROM headgate.topics t WHERE t.topic_no = topic_;
    SELECT l.counted INTO v_was FROM headgate.topic_limits l WHERE l.topic_no = topic_;
    INSERT INTO headgate.topic_limits AS l (topic_no, tenant_no, max_running, rate_count, rate_period_ms, rate_burst,
                                            max_running_per_key, key_rate_count, key_rate_period_ms, key_rate_burst,
                                            ordered_by_key, fair_by_key, max_backlog, swept_to, changed_at)
    VALUES (topic_, v_tenant, max_running_, rate_count_, rate_period_ms_, rate_burst_, max_running_per_key_, key_rate_count_,
            key_rate_period_ms_, key_rate_burst_, ordered_by_key_, fair_by_key_, max_backlog_, '', headgate.clock_v1())
    ON CONFLICT (topic_no) DO UPDATE
       SET max_running = excluded.max_running, rate_count = excluded.rate_count, rate_period_ms = excluded.rate_period_ms,
           rate_burst = excluded.rate_burst, max_running_per_key = excluded.max_running_per_key,
           key_rate_count = excluded.key_rate_count, key_rate_period_ms = excluded.key_rate_period_ms,
           key_rate_burst = excluded.key_rate_burst, ordered_by_key = excluded.ordered_by_key,
           fair_by_key = excluded.fair_by_key, max_backlog = excluded.max_backlog, swept_to = '',
           changed_at = excluded.changed_at
    RETURNING l.counted INTO v_is;
    UPDATE headgate.topics t SET changed_by = pg_current_xact_id() WHERE t.topic_no = topic_;     -- instances remember `keyed`
    IF v_is AND v_was IS NOT TRUE THEN
        SELECT array_agg(r.id) INTO v_ids
          FROM (SELECT j.id FROM headgate.jobs j WHERE j.state = 1 AND j.topic_no = topic_     -- index: jobs_running
                 ORDER BY j.id FOR UPDATE) AS r;
        UPDATE headgate.jobs j SET flags = j.flags | 128
         WHERE j.tenant_no = v_tenant AND j.id = ANY (v_ids) AND j.state + 0 = 1;
        INSERT INTO headgate.limit_usage AS u (tenant_no, topic_no, limit_key, running)
        VALUES (v_tenant, topic_, '', coalesce(cardinality(v_ids), 0))
        ON CONFLICT (topic_no, limit_key) DO UPDATE SET running = excluded.running;
    END IF;
END $$;

-- Counters that are wrong, and by how much: one statement, hence one snapshot, in which jobs and counters must agree.
CREATE FUNCTION headgate.limit_drift_v1()
RETURNS TABLE (tenant_no int, topic_no int, limit_key text, running int, admitted int)
LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
    WITH held AS MATERIALIZED (
        SELECT j.tenant_no, j.topic_no, j.id, j.flags, j.state FROM headgate.jobs j WHERE j.state = 1 AND j.flags & 132 <> 0
        UNION ALL
        SELECT j.tenant_no, j.topic_no, j.id, j.flags, j.state
          FROM (SELECT DISTINCT u.topic_no FROM headgate.limit_usage u WHERE u.limit_key > '') AS t
         CROSS JOIN LATERAL (SELECT j.tenant_no, j.topic_no, j.id, j.flags, j.state FROM headgate.jobs j
                              WHERE j.topic_no = t.topic_no AND j.state = 0 AND j.flags & 4 <> 0) AS j),
    truth AS (
        SELECT h.tenant_no, h.topic_no, '' AS limit_key, count(*)::int AS running, 0 AS admitted
          FROM held h WHERE h.state = 1 AND h.flags & 128 <> 0 GROUP BY 1, 2
        UNION ALL
        SELECT h.tenant_no, k.topic_no, k.limit_key, count(*) FILTER (WHERE h.state = 1)::int,
               count(*) FILTER (WHERE h.state = 0)::int
          FROM held h
         CROSS JOIN LATERAL (SELECT k.topic_no, k.limit_key FROM headgate.job_limit_keys k
                              WHERE k.tenant_no = h.tenant_no AND k.job_id = h.id LIMIT 1) AS k
         WHERE h.flags & 4 <> 0 GROUP BY 1, 2, 3)
    SELECT coalesce(t.tenant_no, u.tenant_no), coalesce(t.topic_no, u.topic_no), coalesce(t.limit_key, u.limit_key),
           coalesce(t.running, 0) - coalesce(u.running, 0), coalesce(t.admitted, 0) - coalesce(u.admitted, 0)
      FROM truth t
      FULL JOIN (SELECT u.tenant_no, u.topic_no, u.limit_key, u.running, u.admitted FROM headgate.limit_usage u) AS u
        ON u.topic_no = t.topic_no AND u.limit_key = t.limit_key
     WHERE coalesce(t.running, 0) <> coalesce(u.running, 0) OR coalesce(t.admitted, 0) <> coalesce(u.admitted, 0)
$$;

-- Puts wrong counters right, by the difference: what others change meanwhile stays counted. Also forgets keys that nobody
-- uses (behind (topic_, key_), at most n_). Returns where to go on, and how many were wrong.
CREATE FUNCTION headgate.mend_limits_v1(topic_ int, key_ text, n_ int, OUT topic int, OUT key text, OUT mended int)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_now   timestamptz := headgate.clock_v1();
    v_topics int[];
    v_keys  text[];
BEGIN
    mended := 0;
    IF NOT pg_try_advisory_xact_lock(4847423, 2) THEN      -- two that saw the same difference would put it right twice
        topic := topic_;
        key := key_;
        RETURN;
    END IF;
    WITH wrong AS MATERIALIZED (SELECT d.tenant_no, d.topic_no, d.limit_key, d.running, d.admitted FROM headgate.limit_drift_v1() AS d),
    put_right AS (
        INSERT INTO headgate.limit_usage AS u (tenant_no, topic_no, limit_key, running, admitted, next_at)
        SELECT w.tenant_no, w.topic_no, w.limit_key, w.running, w.admitted, v_now FROM wrong w
         ORDER BY w.tenant_no, w.limit_key > '', w.topic_no, w.limit_key
        ON CONFLICT (topic_no, limit_key) DO UPDATE
           SET running = u.running + excluded.running, admitted = u.admitted + excluded.admitted, next_at = v_now
        RETURNING 1)
    SELECT count(*) INTO mended FROM put_right;
    WITH looked AS MATERIALIZED (
        SELECT u.topic_no, u.limit_key, u.running, u.admitted, u.holder, u.next_at, u.refilled_at
          FROM headgate.limit_usage u WHERE (u.topic_no, u.limit_key) > (topic_, key_)
         ORDER BY u.topic_no, u.limit_key LIMIT n_),
    idle AS MATERIALIZED (
        SELECT u.topic_no, u.limit_key FROM headgate.limit_usage u
         WHERE (u.topic_no, u.limit_key) IN (SELECT l.topic_no, l.limit_key FROM looked l
                WHERE l.limit_key > '' AND l.running = 0 AND l.admitted = 0 AND l.holder IS NULL AND l.next_at IS NULL)
         ORDER BY u.topic_no, u.limit_key FOR UPDATE SKIP LOCKED),
    gone AS (
        DELETE FROM headgate.limit_usage u USING idle i
         WHERE u.topic_no = i.topic_no AND u.limit_key = i.limit_key
           AND u.running = 0 AND u.admitted = 0 AND u.holder IS NULL AND u.next_at IS NULL
           -- A key that is forgotten starts with a full bucket, so only when it is full.
           AND NOT EXISTS (SELECT FROM headgate.topic_limits l
                            WHERE l.topic_no = u.topic_no AND l.key_rate_count IS NOT NULL
                              AND headgate.tokens_v1(u.tokens, u.refilled_at, l.key_rate_count, l.key_rate_period_ms,
                                                     l.key_rate_burst, v_now) < coalesce(l.key_rate_burst, l.key_rate_count))
           AND NOT EXISTS (SELECT FROM headgate.limit_line w WHERE w.topic_no = u.topic_no AND w.limit_key = u.limit_key))
    SELECT l.topic_no, l.limit_key INTO topic, key FROM looked l ORDER BY l.topic_no DESC, l.limit_key DESC LIMIT 1;
END $$;
