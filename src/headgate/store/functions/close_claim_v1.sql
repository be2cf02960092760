-- After a claim: count what was taken at at_, and say when to look again. capacities_ is what there was, left_ what is left. A row
-- (topic, NULL) means: when something of that topic ends.
CREATE FUNCTION headgate.close_claim_v1(topics_ int[], capacities_ int[], left_ int[], n_ int, taken_ int, at_ timestamptz)
RETURNS TABLE (topic_no int, at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE v_now timestamptz := at_;
BEGIN
    UPDATE headgate.limit_usage u
       SET running = u.running + c.taken,
           tokens = CASE WHEN c.rate_count IS NOT NULL THEN headgate.tokens_v1(
                        u.tokens, u.refilled_at, c.rate_count, c.rate_period_ms, c.rate_burst, v_now) - c.taken END,
           refilled_at = CASE WHEN c.rate_count IS NOT NULL THEN v_now END
      FROM (SELECT t.topic_no, t.capacity - t.capacity_left AS taken, l.rate_count, l.rate_period_ms, l.rate_burst
              FROM unnest(topics_, capacities_, left_) AS t(topic_no, capacity, capacity_left)
             CROSS JOIN LATERAL (SELECT l.rate_count, l.rate_period_ms, l.rate_burst FROM headgate.topic_limits l
                                  WHERE l.topic_no = t.topic_no LIMIT 1) AS l
             WHERE t.capacity > t.capacity_left) AS c
     WHERE u.topic_no = c.topic_no AND u.limit_key = '';
    IF taken_ < n_ THEN      -- else the caller asks again anyhow
        RETURN QUERY
        SELECT t.topic_no,
               CASE WHEN l.rate_count IS NOT NULL AND coalesce(l.max_running > u.running, true) THEN
                   headgate.tokens_at_v1(1, headgate.tokens_v1(u.tokens, u.refilled_at, l.rate_count, l.rate_period_ms,
                                                                l.rate_burst, v_now),
                                         l.rate_count, l.rate_period_ms, l.rate_burst, v_now) END
          FROM unnest(topics_, left_) AS t(topic_no, capacity_left)
         CROSS JOIN LATERAL (SELECT l.max_running, l.rate_count, l.rate_period_ms, l.rate_burst
                               FROM headgate.topic_limits l WHERE l.topic_no = t.topic_no LIMIT 1) AS l
         CROSS JOIN LATERAL (SELECT u.running, u.tokens, u.refilled_at FROM headgate.limit_usage u
                              WHERE u.topic_no = t.topic_no AND u.limit_key = '' LIMIT 1) AS u
         WHERE t.capacity_left = 0;
    END IF;
END $$;
