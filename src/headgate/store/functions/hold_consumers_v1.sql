-- The sessions of one instance that want jobs of topics with a maximum of consumers (headgate.topic_consumers): new ones are
-- noted, those that are noted are renewed for ttl_ms_, all others of the instance are forgotten. Returns which of them are
-- active now, and the number of each among those that wait (0: active). A pull worker is noted by every instance that it calls, under
-- the same `session`: it is one consumer, active as long as one of its rows is.
--
-- A session becomes active only while fewer than the maximum are, and each topic is decided by one transaction at a time: so no
-- more are active than the topic permits. Only its own instance makes a row inactive, when the maximum was lowered, for
-- only that instance can stop claiming for it; until then it counts.
CREATE FUNCTION headgate.hold_consumers_v1(instance_ int, topics_ int[], sessions_ uuid[], workers_ text[], ttl_ms_ int)
RETURNS TABLE (topic_no int, session uuid, waiting int)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE v_now timestamptz;
BEGIN
    PERFORM set_config('lock_timeout', '1000', true);
    PERFORM pg_advisory_xact_lock(4847423, 5 /* consumers */);      -- its own statement: the next ones see what was committed
    v_now := headgate.clock_v1();      -- after the wait, or a row could be renewed to an earlier time than another call gave it
    DELETE FROM headgate.topic_consumers c
     WHERE c.until <= v_now OR c.until > v_now + ttl_ms_ * interval '2 ms'      -- the clock was set back since
        OR (c.instance_no = instance_
            AND ((c.topic_no, c.session) IN (SELECT * FROM unnest(topics_, sessions_))) IS NOT TRUE);
    INSERT INTO headgate.topic_consumers AS c (topic_no, session, instance_no, worker, active, since, until)
    SELECT g.topic_no, g.session, instance_, g.worker, false, v_now + g.n * interval '1 us',      -- in the order given
           v_now + ttl_ms_ * interval '1 ms'
      FROM unnest(topics_, sessions_, workers_) WITH ORDINALITY AS g(topic_no, session, worker, n) ORDER BY 1, 2
    ON CONFLICT (topic_no, session, instance_no) DO UPDATE SET until = excluded.until;
    UPDATE headgate.topic_consumers c SET active = r.place <= r.most
      FROM (SELECT w.topic_no, w.session, w.place, coalesce(t.max_consumers, 2147483647) AS most
              FROM (SELECT k.topic_no, k.session, row_number() OVER (
                               PARTITION BY k.topic_no ORDER BY bool_or(k.active) DESC, min(k.since), k.session) AS place
                      FROM headgate.topic_consumers k WHERE k.topic_no = ANY (topics_) GROUP BY k.topic_no, k.session) AS w
              JOIN headgate.topics t ON t.topic_no = w.topic_no) AS r
     WHERE c.topic_no = r.topic_no AND c.session = r.session AND c.active <> (r.place <= r.most)
       AND (NOT c.active OR c.instance_no = instance_);
    RETURN QUERY
    SELECT w.topic_no, w.session, w.waiting
      FROM (SELECT k.topic_no, k.session, k.instance_no,
                   CASE WHEN k.active THEN 0
                        ELSE row_number() OVER (PARTITION BY k.topic_no, k.active ORDER BY k.since, k.session) END::int AS waiting
              FROM headgate.topic_consumers k WHERE k.topic_no = ANY (topics_)) AS w
     WHERE w.instance_no = instance_;
END $$;
