-- How many of each topic may start now, at most n_; NULL: no limit. Locks the usage rows of those that count.
CREATE FUNCTION headgate.topic_capacity_v1(topics_ int[], n_ int) RETURNS int[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
DECLARE
    v_capacities int[] := array_fill(NULL::int, ARRAY[cardinality(topics_)]);
    v_now   timestamptz := headgate.clock_v1();
    v_one   record;
BEGIN
    FOR v_one IN
        SELECT l.topic_no, l.max_running, l.rate_count, l.rate_period_ms, l.rate_burst, u.running, u.tokens, u.refilled_at
          FROM (SELECT l.topic_no, l.max_running, l.rate_count, l.rate_period_ms, l.rate_burst FROM headgate.topic_limits l
                 WHERE l.topic_no = ANY (topics_) AND l.counted ORDER BY l.topic_no) AS l
         CROSS JOIN LATERAL (SELECT u.running, u.tokens, u.refilled_at FROM headgate.limit_usage u
                              WHERE u.topic_no = l.topic_no AND u.limit_key = '' FOR UPDATE) AS u
    LOOP
        v_capacities[array_position(topics_, v_one.topic_no)] := greatest(0, least(n_, v_one.max_running - v_one.running,
            CASE WHEN v_one.rate_count IS NOT NULL THEN floor(headgate.tokens_v1(
                v_one.tokens, v_one.refilled_at, v_one.rate_count, v_one.rate_period_ms, v_one.rate_burst, v_now)) END));
    END LOOP;
    RETURN v_capacities;
END $$;
