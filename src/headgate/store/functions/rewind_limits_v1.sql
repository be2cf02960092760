-- After a step back of the clock: buckets that were charged at a time that lies ahead would get no token until it is reached.
-- They keep what they have and refill from now on, and their keys are looked at at once; so are keys without a bucket whose
-- next look lies ahead. Returns how many. Waits for a lock no longer than a tick does.
CREATE FUNCTION headgate.rewind_limits_v1() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_now     timestamptz;
    v_topics  int[];
    v_keys    text[];
    v_rewound bigint;
BEGIN
    PERFORM set_config('lock_timeout', '100', true);
    SELECT array_agg(a.topic_no), array_agg(a.limit_key) INTO v_topics, v_keys
      FROM (SELECT u.topic_no, u.limit_key FROM headgate.limit_usage u
             WHERE u.refilled_at > headgate.clock_v1() OR (u.refilled_at IS NULL AND u.next_at > headgate.clock_v1())
             ORDER BY u.tenant_no, u.limit_key > '', u.topic_no, u.limit_key FOR UPDATE) AS a;
    -- Read behind the locks: a claim that held one has charged its bucket at a time after the one seen above. To move that
    -- back would give the bucket tokens twice for the time between.
    v_now := headgate.clock_v1();
    UPDATE headgate.limit_usage u
       SET refilled_at = CASE WHEN u.refilled_at IS NOT NULL THEN v_now END,
           next_at = CASE WHEN u.next_at IS NOT NULL THEN v_now END
      FROM unnest(v_topics, v_keys) AS a(topic_no, limit_key)
     WHERE u.topic_no = a.topic_no AND u.limit_key = a.limit_key
       AND (u.refilled_at > v_now OR (u.refilled_at IS NULL AND u.next_at > v_now));
    GET DIAGNOSTICS v_rewound = ROW_COUNT;
    RETURN v_rewound;
END $$;
