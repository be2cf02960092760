-- Puts wrong counters right, by the difference: what others change meanwhile stays counted. Also forgets keys that no job
-- uses (behind (topic_, key_), at most n_). Returns where to go on, and how many were wrong.
CREATE FUNCTION headgate.mend_limits_v1(topic_ int, key_ text, n_ int, OUT topic int, OUT key text, OUT mended int)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_now   timestamptz := headgate.clock_v1();
    v_topics int[];
    v_keys  text[];
BEGIN
    mended := 0;
    -- Without limits nothing is counted, and the walk over all that runs is spared: while an old snapshot is held, that is
    -- a walk over all that ran since.
    IF NOT EXISTS (SELECT FROM headgate.topic_limits) AND NOT EXISTS (SELECT FROM headgate.limit_usage) THEN RETURN; END IF;
    IF NOT pg_try_advisory_xact_lock(4847423, 3 /* limit_drift */) THEN      -- two that saw the same difference would put it right twice
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
