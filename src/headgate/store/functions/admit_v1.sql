-- Admits jobs that may run, of these keys of one tenant; their usage rows are locked by this transaction. Says which topics got
-- new pending jobs (now) or will have capacity later (when). A key admits at most 1,000 at once, or most_; the rest follows.
CREATE FUNCTION headgate.admit_v1(tenant_ int, topics_ int[], keys_ text[], most_ int[] DEFAULT '{}')
RETURNS TABLE (topic_no int, at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now    timestamptz := headgate.clock_v1();
    v_now_us bigint := (extract(epoch FROM v_now) * 1000000)::bigint;
    v_most   int := 1000;
    v_window int := 10;            -- fair sharing: how many of a key may be pending at once
    v_topics int[];
    v_keys   text[];
    v_capacities  int[];
    v_hold   uuid[];
    v_ctids  tid[];
    v_steps  bigint[];             -- of ageing, where shares are fair
    v_ahead  boolean[];            -- whose line is read one job further than there is capacity, to see if it is empty then
    v_more   int[];                -- where there was such a job: an index, like v_of
    v_ids    uuid[];
    v_nths   int[];
    v_of     int[];                -- whose: an index into v_topics and v_keys
    v_got    uuid[];
    v_fairs  boolean[];
BEGIN
    WITH rules AS MATERIALIZED (
        SELECT l.topic_no, l.max_running_per_key, l.key_rate_count, l.key_rate_period_ms, l.key_rate_burst,
               l.ordered_by_key, l.fair_by_key,
               CASE WHEN l.fair_by_key THEN (SELECT p.ageing_step_us FROM headgate.topics p WHERE p.topic_no = l.topic_no) END AS step_us
          FROM headgate.topic_limits l
         WHERE l.topic_no = ANY (ARRAY(SELECT DISTINCT t FROM unnest(topics_) AS t)) AND l.keyed)
    SELECT array_agg(r.topic_no), array_agg(r.limit_key), array_agg(r.capacity), array_agg(r.holder), array_agg(r.ctid),
           array_agg(r.fair), array_agg(r.step_us), array_agg(r.rated AND r.holder IS NULL)
      INTO v_topics, v_keys, v_capacities, v_hold, v_ctids, v_fairs, v_steps, v_ahead
      FROM (SELECT t.topic_no, t.limit_key, CASE WHEN l.ordered_by_key THEN u.holder END AS holder, u.ctid,
                   l.fair_by_key AS fair, l.step_us, l.key_rate_count IS NOT NULL AS rated,
                   greatest(0, least(v_most, t.most, l.max_running_per_key - u.running - u.admitted,
                       CASE WHEN l.key_rate_count IS NOT NULL THEN
                           floor(headgate.tokens_v1(u.tokens, u.refilled_at, l.key_rate_count, l.key_rate_period_ms,
                                                    l.key_rate_burst, v_now)) - u.admitted END,
                       CASE WHEN l.ordered_by_key THEN 1 - u.running - u.admitted END,
                       CASE WHEN l.fair_by_key THEN v_window - u.admitted END))::int AS capacity
              FROM unnest(topics_, keys_, most_) AS t(topic_no, limit_key, most)
             CROSS JOIN LATERAL (SELECT u.running, u.admitted, u.tokens, u.refilled_at, u.holder, u.ctid
                                   FROM headgate.limit_usage u
                                  WHERE u.topic_no = t.topic_no AND u.limit_key = t.limit_key LIMIT 1) AS u
              LEFT JOIN rules l ON l.topic_no = t.topic_no) AS r;
    IF v_topics IS NULL THEN RETURN; END IF;

    SELECT array_agg(p.job_id ORDER BY p.job_id) FILTER (WHERE p.fits), array_agg(p.nth ORDER BY p.job_id) FILTER (WHERE p.fits),
           array_agg(p.o ORDER BY p.job_id) FILTER (WHERE p.fits), array_agg(p.o) FILTER (WHERE NOT p.fits)
      INTO v_ids, v_nths, v_of, v_more
      FROM (SELECT w.job_id, w.nth::int, r.o::int, w.nth <= r.capacity AS fits
              FROM unnest(v_topics, v_keys, v_capacities, v_hold, v_ahead) WITH ORDINALITY
                   AS r(topic_no, limit_key, capacity, holder, ahead, o)
             CROSS JOIN LATERAL (
                   (SELECT w.job_id, row_number() OVER (ORDER BY w.rank_class, w.rank_at, w.job_id) AS nth
                      FROM headgate.limit_line w                                              -- index: limit_line_order
                     WHERE r.holder IS NULL AND w.topic_no = r.topic_no AND w.limit_key = r.limit_key
                     ORDER BY w.rank_class, w.rank_at, w.job_id LIMIT r.capacity + r.ahead::int)
                   UNION ALL
                   -- Strict order: while one has begun and not ended, no other job.
                   (SELECT w.job_id, 1 FROM headgate.limit_line w
                     WHERE w.tenant_no = tenant_ AND w.job_id = r.holder AND w.topic_no = r.topic_no
                       AND w.limit_key = r.limit_key LIMIT r.capacity)) AS w
             WHERE r.capacity > 0 OR r.ahead) AS p;
    IF v_ids IS NOT NULL THEN
        SELECT array_agg(l.id) INTO v_got
          FROM (SELECT j.id FROM headgate.jobs j
                 WHERE j.tenant_no = tenant_ AND j.id = ANY (v_ids) AND j.state + 0 = 4 /* blocked */
                 ORDER BY j.id FOR UPDATE SKIP LOCKED) AS l;
    END IF;
    IF v_got IS NOT NULL THEN
        -- Fair: the rank is that of the admission, so keys take turns, however many jobs one of them has. Arrivals are written
        -- here and not by arrived_v1, which would read the jobs again.
        WITH admitted AS (
            UPDATE headgate.jobs j
               SET state = 0 /* pending */,
                   rank_at = CASE WHEN v_fairs[v_of[width_bucket(j.id, v_ids)]] THEN v_now_us + v_nths[width_bucket(j.id, v_ids)]
                                       - coalesce(j.priority * v_steps[v_of[width_bucket(j.id, v_ids)]], 0)
                                  ELSE j.rank_at END
             WHERE j.tenant_no = tenant_ AND j.id = ANY (v_got)
            RETURNING j.topic_no, j.rank_class, j.rank_at)
        INSERT INTO headgate.arrivals (topic_no, rank_class, rank_from, rank_to)
        SELECT r.topic_no, r.rank_class, r.rank_from, r.rank_to
          FROM (SELECT array_agg(a.topic_no) AS topics, array_agg(a.rank_class) AS classes, array_agg(a.rank_at) AS ranks
                  FROM admitted a) AS a
         CROSS JOIN LATERAL headgate.key_ranges_v1(a.topics, a.classes, a.ranks) AS r;
        DELETE FROM headgate.limit_line w WHERE w.tenant_no = tenant_ AND w.job_id = ANY (v_got);
        INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
        SELECT tenant_, v_topics[v_of[width_bucket(g.id, v_ids)]], 4 /* blocked */, 0 /* pending */, count(*), v_now
          FROM unnest(v_got) AS g(id) GROUP BY 2;
    END IF;
    IF coalesce(cardinality(v_got), 0) < coalesce(cardinality(v_ids), 0) THEN
        -- Picked but not locked: another session has it, or it was removed. It must not block the others.
        DELETE FROM headgate.limit_line w
         WHERE w.tenant_no = tenant_ AND w.job_id = ANY (v_ids)
           AND NOT EXISTS (SELECT FROM headgate.jobs j
                            WHERE j.tenant_no = tenant_ AND j.id = w.job_id AND j.state + 0 = 4 /* blocked */ OFFSET 0);
    END IF;
    RETURN QUERY
    WITH rules AS MATERIALIZED (
        SELECT l.topic_no, l.ordered_by_key, l.key_rate_count, l.key_rate_period_ms, l.key_rate_burst
          FROM headgate.topic_limits l
         WHERE l.topic_no = ANY (ARRAY(SELECT DISTINCT t FROM unnest(v_topics) AS t)) AND l.keyed),
    counted AS MATERIALIZED (
        SELECT r.topic_no, r.limit_key, r.ctid, coalesce(g.n, 0) AS n, g.one, coalesce(g.missed, 0) AS missed,
               -- Does anyone wait still? NULL: not known yet.
               CASE WHEN r.o = ANY (v_more) THEN true WHEN r.ahead AND coalesce(g.missed, 0) = 0 THEN false END AS more
          FROM unnest(v_topics, v_keys, v_ctids, v_ahead) WITH ORDINALITY AS r(topic_no, limit_key, ctid, ahead, o)
          LEFT JOIN (SELECT p.o, count(*) FILTER (WHERE p.id = ANY (v_got)) AS n,
                            count(*) FILTER (WHERE p.id <> ALL (coalesce(v_got, '{}'))) AS missed,
                            min(p.id::text) FILTER (WHERE p.id = ANY (v_got)) AS one
                       FROM unnest(v_ids, v_of) AS p(id, o) GROUP BY 1) AS g ON g.o = r.o),
    kept AS (
        UPDATE headgate.limit_usage u
           SET admitted = u.admitted + c.n,
               holder = CASE WHEN l.ordered_by_key THEN coalesce(u.holder, c.one::uuid) ELSE u.holder END,
               next_at = CASE
                   -- The line waits for a job to end or to be claimed, not for a time.
                   WHEN l.key_rate_count IS NULL AND c.n < v_most AND c.missed = 0 THEN NULL
                   WHEN NOT coalesce(c.more, EXISTS (SELECT FROM headgate.limit_line w
                                                      WHERE w.topic_no = c.topic_no AND w.limit_key = c.limit_key)) THEN NULL
                   WHEN c.n = v_most THEN v_now
                   WHEN c.missed > 0 THEN v_now + interval '1 second'
                   WHEN l.key_rate_count IS NOT NULL THEN headgate.tokens_at_v1(
                        u.admitted + c.n + 1,
                        headgate.tokens_v1(u.tokens, u.refilled_at, l.key_rate_count, l.key_rate_period_ms,
                                           l.key_rate_burst, v_now),
                        l.key_rate_count, l.key_rate_period_ms, l.key_rate_burst, v_now) END
          FROM counted c LEFT JOIN rules l ON l.topic_no = c.topic_no
         WHERE u.ctid = c.ctid      -- locked by us: it is where it was
        RETURNING u.topic_no, c.n, u.next_at)
    SELECT k.topic_no, min(CASE WHEN k.n > 0 THEN v_now ELSE k.next_at END) FROM kept k
     GROUP BY 1 HAVING bool_or(k.n > 0) OR min(k.next_at) IS NOT NULL;
END $$;
