-- Writes a topic's limits. The pause lock waits for the claims in flight and keeps out new ones until this commits, so that
-- what runs now is counted exactly, and no claim goes by the old limits afterwards. Nothing that runs is ended.
--
-- Never waits for long under the pause lock, for that stops the claims of all tenants: what another transaction holds is
-- an error (55P03), and the caller tries again.
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
    v_patience text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '100ms', true);
    IF (max_running_ IS NOT NULL OR rate_count_ IS NOT NULL)
       AND NOT EXISTS (SELECT FROM headgate.topic_limits l WHERE l.topic_no = topic_ AND l.counted) THEN
        -- Are the jobs that run free? An application's transaction may hold one for as long as it is open. The locks are
        -- given back: held until the pause lock is there, they could be what a claim in flight waits for.
        BEGIN
            PERFORM FROM (SELECT j.id FROM headgate.jobs j WHERE j.state = 1 /* running */ AND j.topic_no = topic_  -- index: jobs_running
                           ORDER BY j.id FOR UPDATE) AS r;
            RAISE EXCEPTION USING ERRCODE = 'HG003', MESSAGE = 'the jobs that run are free';
        EXCEPTION WHEN SQLSTATE 'HG003' THEN
        END;
    END IF;
    PERFORM set_config('lock_timeout', v_patience, true);      -- claims in flight are waited for as by a pause
    PERFORM pg_advisory_xact_lock(4847423, 1 /* dispatch */);
    PERFORM set_config('lock_timeout', '100ms', true);         -- all tenants' claims wait for this
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
          FROM (SELECT j.id FROM headgate.jobs j WHERE j.state = 1 /* running */ AND j.topic_no = topic_  -- index: jobs_running
                 ORDER BY j.id FOR UPDATE) AS r;
        UPDATE headgate.jobs j SET flags = j.flags | 128 /* counted */
         WHERE j.tenant_no = v_tenant AND j.id = ANY (v_ids) AND j.state + 0 = 1 /* running */;
        INSERT INTO headgate.limit_usage AS u (tenant_no, topic_no, limit_key, running)
        VALUES (v_tenant, topic_, '', coalesce(cardinality(v_ids), 0))
        ON CONFLICT (topic_no, limit_key) DO UPDATE SET running = excluded.running;
    END IF;
    PERFORM set_config('lock_timeout', v_patience, true);
END $$;
