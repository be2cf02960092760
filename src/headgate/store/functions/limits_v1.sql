-- Limits by topic and by key. A topic's own limits (key '') are kept by the claim itself: it locks the topic's usage row,
-- takes no more than there is room for, and marks what it took (flag 128), so that leaving `running` gives the room back.
--
-- Limits by key are kept by a line per key. A job with a key (flag 4) that is due is `blocked` and stands in
-- headgate.limit_line until its key has room; then it is `pending` ("admitted") and claimed like any other. So the claim
-- index holds only what may run, and a million jobs of one key cost a claim nothing.
--
-- Lock order, for everybody: job rows (by tenant, id), then usage rows of one tenant after the other: its topics' own
-- by number, then its keys' by (topic, key). Behind a usage lock, job rows are only taken with SKIP LOCKED. Whoever
-- locks a blocked job with a key lets its key be looked at again before it commits: it may have been passed over.

-- Tokens in a bucket now.
CREATE FUNCTION headgate.tokens_v1(
    tokens_ double precision, at_ timestamptz, count_ int, period_ms_ bigint, burst_ int, now_ timestamptz)
RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT least(coalesce(burst_, count_)::double precision,
                 coalesce(tokens_, coalesce(burst_, count_))
                   + greatest(0, extract(epoch FROM now_ - coalesce(at_, now_))::double precision) * 1000 * count_ / period_ms_)
$$;

-- When that many tokens will be there; NULL: never, the bucket is too small.
CREATE FUNCTION headgate.tokens_at_v1(
    wanted_ double precision, tokens_ double precision, count_ int, period_ms_ bigint, burst_ int, now_ timestamptz)
RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN wanted_ > coalesce(burst_, count_) THEN NULL
                -- A little more than needed: a timer that fires a rounding error early would fire twice.
                ELSE now_ + (ceil(greatest(0, wanted_ - tokens_) * period_ms_ / count_ * 1000) + 100) * interval '1 us' END
$$;

-- ---------------------------------------------------------------- a topic's own limits

-- How many of each topic may start now, at most n_; NULL: as many as you like. Locks the usage rows of those that count.
CREATE FUNCTION headgate.topic_room_v1(topics_ int[], n_ int) RETURNS int[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
DECLARE
    v_rooms int[] := array_fill(NULL::int, ARRAY[cardinality(topics_)]);
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
        v_rooms[array_position(topics_, v_one.topic_no)] := greatest(0, least(n_, v_one.max_running - v_one.running,
            CASE WHEN v_one.rate_count IS NOT NULL THEN floor(headgate.tokens_v1(
                v_one.tokens, v_one.refilled_at, v_one.rate_count, v_one.rate_period_ms, v_one.rate_burst, v_now)) END));
    END LOOP;
    RETURN v_rooms;
END $$;

-- After a claim: count what was taken at at_, and say when to look again. rooms_ is what there was, left_ what is left. A row
-- (topic, NULL) means: when something of that topic ends.
CREATE FUNCTION headgate.close_claim_v1(topics_ int[], rooms_ int[], left_ int[], n_ int, taken_ int, at_ timestamptz)
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
      FROM (SELECT t.topic_no, t.room - t.room_left AS taken, l.rate_count, l.rate_period_ms, l.rate_burst
              FROM unnest(topics_, rooms_, left_) AS t(topic_no, room, room_left)
             CROSS JOIN LATERAL (SELECT l.rate_count, l.rate_period_ms, l.rate_burst FROM headgate.topic_limits l
                                  WHERE l.topic_no = t.topic_no LIMIT 1) AS l
             WHERE t.room > t.room_left) AS c
     WHERE u.topic_no = c.topic_no AND u.limit_key = '';
    IF taken_ < n_ THEN      -- else the caller asks again anyhow
        RETURN QUERY
        SELECT t.topic_no,
               CASE WHEN l.rate_count IS NOT NULL AND coalesce(l.max_running > u.running, true) THEN
                   headgate.tokens_at_v1(1, headgate.tokens_v1(u.tokens, u.refilled_at, l.rate_count, l.rate_period_ms,
                                                                l.rate_burst, v_now),
                                         l.rate_count, l.rate_period_ms, l.rate_burst, v_now) END
          FROM unnest(topics_, left_) AS t(topic_no, room_left)
         CROSS JOIN LATERAL (SELECT l.max_running, l.rate_count, l.rate_period_ms, l.rate_burst
                               FROM headgate.topic_limits l WHERE l.topic_no = t.topic_no LIMIT 1) AS l
         CROSS JOIN LATERAL (SELECT u.running, u.tokens, u.refilled_at FROM headgate.limit_usage u
                              WHERE u.topic_no = t.topic_no AND u.limit_key = '' LIMIT 1) AS u
         WHERE t.room_left = 0;
    END IF;
END $$;

-- ---------------------------------------------------------------- keys

-- Lets in who may run, of these keys of one tenant; their usage rows are locked by this transaction. Says which topics got
-- new pending jobs (now) or will have room later (when). A key lets in at most 1,000 at once, or most_; the rest follows.
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
    v_rooms  int[];
    v_hold   uuid[];
    v_ids    uuid[];
    v_nths   int[];
    v_of     int[];                -- whose: an index into v_topics and v_keys
    v_got    uuid[];
    v_fairs  boolean[];
BEGIN
    WITH rules AS MATERIALIZED (
        SELECT l.topic_no, l.max_running_per_key, l.key_rate_count, l.key_rate_period_ms, l.key_rate_burst,
               l.ordered_by_key, l.fair_by_key
          FROM headgate.topic_limits l
         WHERE l.topic_no = ANY (ARRAY(SELECT DISTINCT t FROM unnest(topics_) AS t)) AND l.keyed)
    SELECT array_agg(r.topic_no), array_agg(r.limit_key), array_agg(r.room), array_agg(r.holder), array_agg(r.fair)
      INTO v_topics, v_keys, v_rooms, v_hold, v_fairs
      FROM (SELECT t.topic_no, t.limit_key, CASE WHEN l.ordered_by_key THEN u.holder END AS holder, l.fair_by_key AS fair,
                   greatest(0, least(v_most, t.most, l.max_running_per_key - u.running - u.admitted,
                       CASE WHEN l.key_rate_count IS NOT NULL THEN
                           floor(headgate.tokens_v1(u.tokens, u.refilled_at, l.key_rate_count, l.key_rate_period_ms,
                                                    l.key_rate_burst, v_now)) - u.admitted END,
                       CASE WHEN l.ordered_by_key THEN 1 - u.running - u.admitted END,
                       CASE WHEN l.fair_by_key THEN v_window - u.admitted END))::int AS room
              FROM unnest(topics_, keys_, most_) AS t(topic_no, limit_key, most)
             CROSS JOIN LATERAL (SELECT u.running, u.admitted, u.tokens, u.refilled_at, u.holder FROM headgate.limit_usage u
                                  WHERE u.topic_no = t.topic_no AND u.limit_key = t.limit_key LIMIT 1) AS u
              LEFT JOIN rules l ON l.topic_no = t.topic_no) AS r;
    IF v_topics IS NULL THEN RETURN; END IF;

    SELECT array_agg(p.job_id ORDER BY p.job_id), array_agg(p.nth ORDER BY p.job_id), array_agg(p.o ORDER BY p.job_id)
      INTO v_ids, v_nths, v_of
      FROM (SELECT w.job_id, w.nth::int, r.o::int
              FROM unnest(v_topics, v_keys, v_rooms, v_hold) WITH ORDINALITY AS r(topic_no, limit_key, room, holder, o)
             CROSS JOIN LATERAL (
                   (SELECT w.job_id, row_number() OVER (ORDER BY w.rank_class, w.rank_at, w.job_id) AS nth
                      FROM headgate.limit_line w                                              -- index: limit_line_order
                     WHERE r.holder IS NULL AND w.topic_no = r.topic_no AND w.limit_key = r.limit_key
                     ORDER BY w.rank_class, w.rank_at, w.job_id LIMIT r.room)
                   UNION ALL
                   -- Strict order: while one has begun and not ended, nobody but it.
                   (SELECT w.job_id, 1 FROM headgate.limit_line w
                     WHERE w.tenant_no = tenant_ AND w.job_id = r.holder AND w.topic_no = r.topic_no
                       AND w.limit_key = r.limit_key LIMIT r.room)) AS w
             WHERE r.room > 0) AS p;
    IF v_ids IS NOT NULL THEN
        SELECT array_agg(l.id) INTO v_got
          FROM (SELECT j.id FROM headgate.jobs j
                 WHERE j.tenant_no = tenant_ AND j.id = ANY (v_ids) AND j.state + 0 = 4
                 ORDER BY j.id FOR UPDATE SKIP LOCKED) AS l;
    END IF;
    IF v_got IS NOT NULL THEN
        -- Fair: the rank is that of the admission, so keys take turns, whoever came first with how many.
        UPDATE headgate.jobs j
           SET state = 0,
               rank_at = CASE WHEN v_fairs[v_of[width_bucket(j.id, v_ids)]] THEN v_now_us + v_nths[width_bucket(j.id, v_ids)]
                                   - coalesce(j.priority * (SELECT p.ageing_step_us FROM headgate.topics p
                                                             WHERE p.topic_no = j.topic_no), 0)
                              ELSE j.rank_at END
         WHERE j.tenant_no = tenant_ AND j.id = ANY (v_got);
        PERFORM headgate.arrived_v1(tenant_, v_got);
        DELETE FROM headgate.limit_line w WHERE w.tenant_no = tenant_ AND w.job_id = ANY (v_got);
        INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
        SELECT tenant_, v_topics[v_of[width_bucket(g.id, v_ids)]], 4, 0, count(*), v_now FROM unnest(v_got) AS g(id) GROUP BY 2;
    END IF;
    IF coalesce(cardinality(v_got), 0) < coalesce(cardinality(v_ids), 0) THEN
        -- Picked and not got: somebody is at it, or it is not there any more, and must not stand in the others' way.
        DELETE FROM headgate.limit_line w
         WHERE w.tenant_no = tenant_ AND w.job_id = ANY (v_ids)
           AND NOT EXISTS (SELECT FROM headgate.jobs j
                            WHERE j.tenant_no = tenant_ AND j.id = w.job_id AND j.state + 0 = 4 OFFSET 0);
    END IF;
    RETURN QUERY
    WITH rules AS MATERIALIZED (
        SELECT l.topic_no, l.ordered_by_key, l.key_rate_count, l.key_rate_period_ms, l.key_rate_burst
          FROM headgate.topic_limits l
         WHERE l.topic_no = ANY (ARRAY(SELECT DISTINCT t FROM unnest(v_topics) AS t)) AND l.keyed),
    counted AS MATERIALIZED (
        SELECT r.topic_no, r.limit_key, r.room, coalesce(g.n, 0) AS n, g.one, coalesce(g.missed, 0) AS missed
          FROM unnest(v_topics, v_keys, v_rooms) WITH ORDINALITY AS r(topic_no, limit_key, room, o)
          LEFT JOIN (SELECT p.o, count(*) FILTER (WHERE p.id = ANY (v_got)) AS n,
                            count(*) FILTER (WHERE p.id <> ALL (coalesce(v_got, '{}'))) AS missed,
                            min(p.id::text) FILTER (WHERE p.id = ANY (v_got)) AS one
                       FROM unnest(v_ids, v_of) AS p(id, o) GROUP BY 1) AS g ON g.o = r.o),
    kept AS (
        UPDATE headgate.limit_usage u
           SET admitted = u.admitted + c.n,
               holder = CASE WHEN l.ordered_by_key THEN coalesce(u.holder, c.one::uuid) ELSE u.holder END,
               next_at = CASE
                   WHEN NOT EXISTS (SELECT FROM headgate.limit_line w
                                     WHERE w.topic_no = c.topic_no AND w.limit_key = c.limit_key) THEN NULL
                   WHEN c.n = v_most THEN v_now
                   WHEN c.missed > 0 THEN v_now + interval '1 second'
                   WHEN l.key_rate_count IS NOT NULL THEN headgate.tokens_at_v1(
                        u.admitted + c.n + 1,
                        headgate.tokens_v1(u.tokens, u.refilled_at, l.key_rate_count, l.key_rate_period_ms,
                                           l.key_rate_burst, v_now),
                        l.key_rate_count, l.key_rate_period_ms, l.key_rate_burst, v_now) END
          FROM counted c LEFT JOIN rules l ON l.topic_no = c.topic_no
         WHERE u.topic_no = c.topic_no AND u.limit_key = c.limit_key
        RETURNING u.topic_no, c.n, u.next_at)
    SELECT k.topic_no, min(CASE WHEN k.n > 0 THEN v_now ELSE k.next_at END) FROM kept k
     GROUP BY 1 HAVING bool_or(k.n > 0) OR min(k.next_at) IS NOT NULL;
END $$;

-- These blocked jobs with a key have become due: put them into their key's line, and let in who may run.
CREATE FUNCTION headgate.line_up_v1(tenant_ int, ids_ uuid[]) RETURNS SETOF int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_topics int[];
    v_keys   text[];
BEGIN
    SELECT array_agg(s.topic_no), array_agg(s.limit_key) INTO v_topics, v_keys
      FROM (SELECT DISTINCT k.topic_no, k.limit_key
              FROM (SELECT j.id FROM headgate.jobs j
                     WHERE j.tenant_no = tenant_ AND j.id = ANY (ids_) AND j.state + 0 = 4 AND j.flags & 256 = 0 OFFSET 0) AS j
             CROSS JOIN LATERAL (SELECT k.topic_no, k.limit_key FROM headgate.job_limit_keys k
                                  WHERE k.tenant_no = tenant_ AND k.job_id = j.id LIMIT 1) AS k
             ORDER BY 1, 2) AS s;
    IF v_topics IS NULL THEN RETURN; END IF;      -- none is blocked: no key's row is touched
    -- Made or locked, in one pass and one order: WHERE false locks the row and writes nothing.
    INSERT INTO headgate.limit_usage AS u (tenant_no, topic_no, limit_key)
    SELECT tenant_, t.topic_no, t.limit_key FROM unnest(v_topics, v_keys) AS t(topic_no, limit_key)
    ON CONFLICT (topic_no, limit_key) DO UPDATE SET running = u.running WHERE false;
    INSERT INTO headgate.limit_line (tenant_no, job_id, topic_no, limit_key, rank_class, rank_at)
    SELECT tenant_, j.id, k.topic_no, k.limit_key, j.rank_class, j.rank_at
      FROM (SELECT j.id, j.rank_class, j.rank_at FROM headgate.jobs j
             WHERE j.tenant_no = tenant_ AND j.id = ANY (ids_) AND j.state + 0 = 4 AND j.flags & 256 = 0 OFFSET 0) AS j
     CROSS JOIN LATERAL (SELECT k.topic_no, k.limit_key FROM headgate.job_limit_keys k
                          WHERE k.tenant_no = tenant_ AND k.job_id = j.id LIMIT 1) AS k
    ON CONFLICT (tenant_no, job_id) DO NOTHING;
    RETURN QUERY SELECT a.topic_no FROM headgate.admit_v1(tenant_, v_topics, v_keys) AS a;
END $$;

-- Locks what jobs of one tenant use: their topics' rows (of those counted there), then their keys'.
CREATE FUNCTION headgate.lock_usage_v1(tenant_ int, topics_ int[], ids_ uuid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
BEGIN
    PERFORM FROM (SELECT DISTINCT t FROM unnest(topics_) AS t ORDER BY t) AS t(topic_no)
      CROSS JOIN LATERAL (SELECT FROM headgate.limit_usage u WHERE u.topic_no = t.topic_no AND u.limit_key = '' FOR UPDATE) AS u;
    PERFORM FROM (SELECT DISTINCT k.topic_no, k.limit_key FROM headgate.job_limit_keys k
                   WHERE k.tenant_no = tenant_ AND k.job_id = ANY (ids_) ORDER BY 1, 2) AS k
      CROSS JOIN LATERAL (SELECT FROM headgate.limit_usage u
                           WHERE u.topic_no = k.topic_no AND u.limit_key = k.limit_key FOR UPDATE) AS u;
END $$;

-- Of jobs a claim has locked, best first, those that may run: no more of a topic than its room, no more of a key than its
-- limits (they may have been lowered since it was let in: then it goes back to its line). Counts the keys' ones as running.
-- at_ is the time of the claim, set by the first call, behind its locks: buckets are charged at the very time at which the
-- jobs are said to have started, or a window of time could hold a few more.
CREATE FUNCTION headgate.take_limited_v1(
    tenant_ int, ids_ uuid[], id_topics_ int[], topics_ int[], rooms_ int[], keyed_ boolean, INOUT at_ timestamptz,
    OUT ids uuid[], OUT rooms int[], OUT wait_topics int[], OUT wait_ats timestamptz[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    v_now     timestamptz;
    v_refused uuid[];
    v_passed  uuid[];
    v_ids     uuid[];              -- those with a key, best first; beside them the place of their key, and how manieth of it
    v_of      int[];
    v_nths    int[];
    v_topics  int[];               -- the keys in their order; beside them what they use
    v_keys    text[];
    v_running int[];
    v_admitted int[];
    v_tokens  double precision[];
    v_refilled timestamptz[];
    v_holders uuid[];
    v_ctids   tid[];
    v_again   int[];               -- keys that may let in others now, and how many at most
    v_again_keys text[];
    v_most    int[];
    v_skipped boolean := false;
BEGIN
    ids := ids_;
    rooms := rooms_;
    IF rooms_ IS NOT NULL THEN
        ids := coalesce((SELECT array_agg(g.id ORDER BY g.n)
                           FROM (SELECT g.id, g.n, g.topic_no, row_number() OVER (PARTITION BY g.topic_no ORDER BY g.n) AS nth
                                   FROM unnest(ids_, id_topics_) WITH ORDINALITY AS g(id, topic_no, n)) AS g
                          WHERE coalesce(g.nth <= rooms_[array_position(topics_, g.topic_no)], true)), '{}');
    END IF;
    IF keyed_ AND cardinality(ids) > 0 THEN
        -- A key's place in v_keys stands for it below: arrays instead of joins, and one visit to each row.
        WITH asked AS MATERIALIZED (
            SELECT o.id, o.n, k.topic_no, k.limit_key, dense_rank() OVER (ORDER BY k.topic_no, k.limit_key) AS k
              FROM unnest(ids) WITH ORDINALITY AS o(id, n)
             CROSS JOIN LATERAL (SELECT k.topic_no, k.limit_key FROM headgate.job_limit_keys k
                                  WHERE k.tenant_no = tenant_ AND k.job_id = o.id LIMIT 1) AS k)
        SELECT array_agg(a.id ORDER BY a.n), array_agg(a.k::int ORDER BY a.n),
               array_agg(a.nth::int ORDER BY a.n),
               array_agg(a.topic_no ORDER BY a.k) FILTER (WHERE a.nth = 1),
               array_agg(a.limit_key ORDER BY a.k) FILTER (WHERE a.nth = 1)
          INTO v_ids, v_of, v_nths, v_topics, v_keys
          FROM (SELECT a.id, a.n, a.k, a.topic_no, a.limit_key, row_number() OVER (PARTITION BY a.k ORDER BY a.n) AS nth
                  FROM asked a) AS a;
        -- In their order; the values are those behind the lock. Only a claim's first call may wait: a later one holds the
        -- locks of those before, and would break the order. What is locked then is left for another time.
        IF at_ IS NULL THEN
            SELECT array_agg(u.running ORDER BY t.k), array_agg(u.admitted ORDER BY t.k), array_agg(u.tokens ORDER BY t.k),
                   array_agg(u.refilled_at ORDER BY t.k), array_agg(u.holder ORDER BY t.k), array_agg(u.ctid ORDER BY t.k)
              INTO v_running, v_admitted, v_tokens, v_refilled, v_holders, v_ctids
              FROM unnest(v_topics, v_keys) WITH ORDINALITY AS t(topic_no, limit_key, k)
              LEFT JOIN LATERAL (SELECT u.running, u.admitted, u.tokens, u.refilled_at, u.holder, u.ctid
                                   FROM headgate.limit_usage u
                                  WHERE u.topic_no = t.topic_no AND u.limit_key = t.limit_key FOR UPDATE) AS u ON true;
            at_ := headgate.clock_v1();
        ELSE
            SELECT array_agg(u.running ORDER BY t.k), array_agg(u.admitted ORDER BY t.k), array_agg(u.tokens ORDER BY t.k),
                   array_agg(u.refilled_at ORDER BY t.k), array_agg(u.holder ORDER BY t.k), array_agg(u.ctid ORDER BY t.k)
              INTO v_running, v_admitted, v_tokens, v_refilled, v_holders, v_ctids
              FROM unnest(v_topics, v_keys) WITH ORDINALITY AS t(topic_no, limit_key, k)
              LEFT JOIN LATERAL (SELECT u.running, u.admitted, u.tokens, u.refilled_at, u.holder, u.ctid
                                   FROM headgate.limit_usage u
                                  WHERE u.topic_no = t.topic_no AND u.limit_key = t.limit_key FOR UPDATE SKIP LOCKED) AS u ON true;
            v_skipped := true;
        END IF;
        v_now := at_;
        WITH rules AS MATERIALIZED (
            SELECT l.topic_no, l.max_running_per_key, l.key_rate_count, l.key_rate_period_ms, l.key_rate_burst,
                   l.ordered_by_key, l.fair_by_key
              FROM headgate.topic_limits l
             WHERE l.topic_no = ANY (ARRAY(SELECT DISTINCT t FROM unnest(v_topics) AS t)) AND l.keyed),
        held AS MATERIALIZED (
            SELECT t.k::int, t.topic_no, l.max_running_per_key, l.key_rate_count, l.key_rate_period_ms, l.key_rate_burst,
                   l.ordered_by_key, l.fair_by_key,
                   CASE WHEN l.key_rate_count IS NOT NULL THEN headgate.tokens_v1(
                       v_tokens[t.k], v_refilled[t.k], l.key_rate_count, l.key_rate_period_ms, l.key_rate_burst, v_now) END
                       AS tokens
              FROM unnest(v_topics) WITH ORDINALITY AS t(topic_no, k) LEFT JOIN rules l ON l.topic_no = t.topic_no),
        per_key AS (
            SELECT array_agg(h.max_running_per_key ORDER BY h.k) AS most,
                   -- Charged meanwhile by one that is later than this claim: its tokens are of a time to come.
                   array_agg(CASE WHEN v_refilled[h.k] > v_now THEN 0 ELSE floor(h.tokens) END ORDER BY h.k) AS tokens,
                   array_agg(h.ordered_by_key ORDER BY h.k) AS ordered
              FROM held h),
        judged AS MATERIALIZED (
            SELECT a.id, a.k, v_skipped AND v_ctids[a.k] IS NULL AS passed,
                   coalesce(v_running[a.k] + a.nth <= p.most[a.k], true)
                   AND coalesce(a.nth <= p.tokens[a.k], true)
                   AND (NOT coalesce(p.ordered[a.k], false)
                        OR (a.nth = 1 AND v_running[a.k] = 0 AND coalesce(v_holders[a.k] = a.id, true))) AS good
              FROM unnest(v_ids, v_of, v_nths) AS a(id, k, nth), per_key p),
        summed AS MATERIALIZED (
            SELECT h.k, j.taken, j.n, h.key_rate_count IS NOT NULL AS rated, h.tokens,
                   -- A claim changes what a key may have pending by fair shares (topped up when half is gone) and by rate.
                   j.taken < j.n OR h.key_rate_count IS NOT NULL
                     OR coalesce(h.fair_by_key AND v_admitted[h.k] - j.n <= 5, false) AS again
              FROM (SELECT j.k, count(*) FILTER (WHERE j.good) AS taken, count(*) AS n FROM judged j WHERE NOT j.passed GROUP BY 1) AS j
              JOIN held h ON h.k = j.k),
        counted AS (
            UPDATE headgate.limit_usage u
               SET running = u.running + s.taken, admitted = u.admitted - s.n,
                   tokens = CASE WHEN s.rated THEN s.tokens - s.taken END, refilled_at = CASE WHEN s.rated THEN v_now END
              FROM summed s WHERE u.ctid = v_ctids[s.k])      -- locked by us: it is where it was
        SELECT (SELECT array_agg(j.id ORDER BY j.id) FROM judged j WHERE NOT j.good AND NOT j.passed),
               (SELECT array_agg(j.id) FROM judged j WHERE j.passed),
               array_agg(v_topics[s.k]) FILTER (WHERE s.again), array_agg(v_keys[s.k]) FILTER (WHERE s.again),
               array_agg(s.taken::int) FILTER (WHERE s.again)
          INTO v_refused, v_passed, v_again, v_again_keys, v_most FROM summed s;
        IF v_refused IS NOT NULL THEN
            UPDATE headgate.jobs j SET state = 4 WHERE j.tenant_no = tenant_ AND j.id = ANY (v_refused);
            INSERT INTO headgate.limit_line (tenant_no, job_id, topic_no, limit_key, rank_class, rank_at)
            SELECT tenant_, j.id, k.topic_no, k.limit_key, j.rank_class, j.rank_at
              FROM (SELECT j.id, j.rank_class, j.rank_at FROM headgate.jobs j
                     WHERE j.tenant_no = tenant_ AND j.id = ANY (v_refused) OFFSET 0) AS j
             CROSS JOIN LATERAL (SELECT k.topic_no, k.limit_key FROM headgate.job_limit_keys k
                                  WHERE k.tenant_no = tenant_ AND k.job_id = j.id LIMIT 1) AS k
            ON CONFLICT (tenant_no, job_id) DO NOTHING;
            INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
            SELECT tenant_, k.topic_no, 0, 4, count(*), v_now FROM headgate.job_limit_keys k
             WHERE k.tenant_no = tenant_ AND k.job_id = ANY (v_refused) GROUP BY 2;
        END IF;
        IF v_refused IS NOT NULL OR v_passed IS NOT NULL THEN
            ids := ARRAY(SELECT o.id FROM unnest(ids) WITH ORDINALITY AS o(id, n)
                          WHERE o.id <> ALL (coalesce(v_refused, '{}') || coalesce(v_passed, '{}')) ORDER BY o.n);
        END IF;
        IF v_again IS NOT NULL THEN
            SELECT array_agg(a.topic_no), array_agg(a.at) INTO wait_topics, wait_ats
              FROM headgate.admit_v1(tenant_, v_again, v_again_keys, v_most) AS a;
        END IF;
    END IF;
    IF rooms_ IS NOT NULL THEN
        rooms := ARRAY(SELECT r.room - (SELECT count(*) FROM unnest(ids_, id_topics_) AS g(id, topic_no)
                                         WHERE g.topic_no = topics_[r.o] AND g.id = ANY (ids))::int
                         FROM unnest(rooms_) WITH ORDINALITY AS r(room, o) ORDER BY r.o);
    END IF;
END $$;

-- These jobs have left `running` (flag 4 or 128 was set): wherever they are now, live or in the archive since at_, what
-- they used is free. Says which topics may have room now.
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
    SELECT array_agg(f.topic_no) FILTER (WHERE f.flags & 128 <> 0), array_agg(f.id) FILTER (WHERE f.flags & 4 <> 0),
           array_agg(f.id) FILTER (WHERE f.flags & 4 <> 0 AND f.state >= 5),
           array_agg(f.id) FILTER (WHERE f.flags & 4 <> 0 AND f.state = 4)
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
    WITH told AS MATERIALIZED (
        SELECT k.topic_no, k.limit_key, count(*) FILTER (WHERE k.job_id = ANY (admitted_)) AS n
          FROM headgate.job_limit_keys k WHERE k.tenant_no = tenant_ AND k.job_id = ANY (ids_) GROUP BY 1, 2),
    counted AS (
        UPDATE headgate.limit_usage u
           SET admitted = u.admitted - t.n, holder = CASE WHEN u.holder = ANY (ids_) THEN NULL ELSE u.holder END
          FROM told t WHERE NOT reline_ AND u.topic_no = t.topic_no AND u.limit_key = t.limit_key)
    SELECT array_agg(t.topic_no), array_agg(t.limit_key) INTO v_topics, v_keys FROM told t;
    RETURN QUERY SELECT a.topic_no FROM headgate.admit_v1(tenant_, coalesce(v_topics, '{}'), v_keys) AS a;
END $$;

-- Keys whose next token is due, and keys of topics whose limits were changed: lets in who may run, at most n_ keys, never
-- waiting for anybody. Says which topics have pending jobs (now) or will have (when), and when the next key is due.
CREATE FUNCTION headgate.admit_due_v1(n_ int) RETURNS TABLE (topic_no int, at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := headgate.clock_v1();
    v_one record;
BEGIN
    FOR v_one IN
        SELECT d.tenant_no, array_agg(d.topic_no) AS topics, array_agg(d.limit_key) AS keys
          FROM (SELECT u.tenant_no, u.topic_no, u.limit_key FROM headgate.limit_usage u
                 WHERE u.next_at <= v_now ORDER BY u.next_at LIMIT n_ FOR UPDATE SKIP LOCKED) AS d
         GROUP BY 1 ORDER BY 1
    LOOP
        RETURN QUERY SELECT a.topic_no, a.at FROM headgate.admit_v1(v_one.tenant_no, v_one.topics, v_one.keys) AS a;
    END LOOP;
    FOR v_one IN
        SELECT l.topic_no, l.tenant_no, l.swept_to FROM headgate.topic_limits l
         WHERE l.swept_to IS NOT NULL ORDER BY l.topic_no LIMIT 10 FOR UPDATE SKIP LOCKED
    LOOP
        DECLARE
            v_keys text[];
        BEGIN
            -- Behind the last one looked at. A row that is locked just now is seen to by whoever holds it.
            SELECT array_agg(d.limit_key) INTO v_keys
              FROM (SELECT u.limit_key FROM headgate.limit_usage u
                     WHERE u.topic_no = v_one.topic_no AND u.limit_key > v_one.swept_to
                     ORDER BY u.limit_key LIMIT n_) AS d;
            UPDATE headgate.topic_limits l SET swept_to = v_keys[cardinality(v_keys)] WHERE l.topic_no = v_one.topic_no;
            SELECT array_agg(d.limit_key) INTO v_keys
              FROM (SELECT u.limit_key FROM headgate.limit_usage u
                     WHERE u.topic_no = v_one.topic_no AND u.limit_key = ANY (v_keys)
                     ORDER BY u.limit_key FOR UPDATE SKIP LOCKED) AS d;
            IF v_keys IS NOT NULL THEN
                RETURN QUERY SELECT a.topic_no, a.at FROM headgate.admit_v1(
                    v_one.tenant_no, array_fill(v_one.topic_no, ARRAY[cardinality(v_keys)]), v_keys) AS a;
            END IF;
        END;
    END LOOP;
    RETURN QUERY SELECT u.topic_no, u.next_at FROM headgate.limit_usage u
                  WHERE u.next_at IS NOT NULL ORDER BY u.next_at LIMIT 1;
END $$;

-- ---------------------------------------------------------------- submits

-- A flush has made jobs with limit keys: notes their keys, and lines up those that are due. undo_ are ords taken back.
CREATE FUNCTION headgate.enter_line_v1(
    tenant_nos_ int[], ids_ uuid[], topic_nos_ int[], limit_ords_ int[], limit_keys_ text[], undo_ int[], new_tenants_ int[],
    new_ids_ uuid[])
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE v_one record;
BEGIN
    FOR v_one IN
        WITH noted AS (
            INSERT INTO headgate.job_limit_keys (tenant_no, job_id, topic_no, limit_key)
            SELECT tenant_nos_[l.o], ids_[l.o], topic_nos_[l.o], l.key FROM unnest(limit_ords_, limit_keys_) AS l(o, key)
             WHERE l.o <> ALL (undo_)
               AND (tenant_nos_[l.o], ids_[l.o]) IN (SELECT u.t, u.i FROM unnest(new_tenants_, new_ids_) AS u(t, i))
             ORDER BY 1, 2
            -- The job is new: a key that is there is of one with its id that retention is removing (retire_v1.sql).
            ON CONFLICT (tenant_no, job_id) DO UPDATE SET topic_no = excluded.topic_no, limit_key = excluded.limit_key
            RETURNING tenant_no, job_id)
        SELECT n.tenant_no, array_agg(n.job_id) AS ids FROM noted n GROUP BY 1 ORDER BY 1
    LOOP
        PERFORM headgate.line_up_v1(v_one.tenant_no, v_one.ids);      -- takes up those that are blocked, not the scheduled
    END LOOP;
END $$;

-- The ords for which their topic has no room in its backlog: whatever waits, due or not. Counted from the totals and the
-- deltas that are not folded yet, in one snapshot: exact but for flushes in flight. What was submitted before is no news,
-- and is let through to be answered as such.
CREATE FUNCTION headgate.over_backlog_v1(tenant_nos_ int[], ids_ uuid[], topic_nos_ int[], key_ords_ int[], keys_ text[])
RETURNS TABLE (ords int[], most bigint, waiting bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_one  record;
    v_now  timestamptz := headgate.clock_v1();
BEGIN
    FOR v_one IN
        SELECT l.topic_no, l.tenant_no, l.max_backlog, c.n,
               (SELECT array_agg(u.o::int) FROM unnest(topic_nos_) WITH ORDINALITY AS u(topic_no, o)
                 WHERE u.topic_no = l.topic_no) AS ords
          FROM headgate.topic_limits l
         CROSS JOIN LATERAL (
               SELECT greatest(0, coalesce((SELECT sum(s.n) FROM headgate.state_counts s
                                 WHERE s.tenant_no = l.tenant_no AND s.topic_no = l.topic_no AND s.state IN (0, 2, 3, 4)), 0)
                      + coalesce((SELECT sum(CASE WHEN d.to_state IN (0, 2, 3, 4) THEN d.n ELSE 0 END
                                             - CASE WHEN d.from_state IN (0, 2, 3, 4) THEN d.n ELSE 0 END)
                                    FROM headgate.flow_deltas d WHERE d.topic_no = l.topic_no), 0)) AS n) AS c
         WHERE l.max_backlog IS NOT NULL AND l.topic_no = ANY (topic_nos_)
    LOOP
        CONTINUE WHEN v_one.n + cardinality(v_one.ords) <= v_one.max_backlog;
        RETURN QUERY
        SELECT array_agg(f.o) FILTER (WHERE f.nth > v_one.max_backlog - v_one.n), v_one.max_backlog, v_one.n::bigint
          FROM (SELECT o.o, row_number() OVER (ORDER BY o.o) AS nth FROM unnest(v_one.ords) AS o(o)
                 WHERE NOT EXISTS (SELECT FROM headgate.jobs j WHERE j.tenant_no = v_one.tenant_no AND j.id = ids_[o.o])
                   AND NOT EXISTS (SELECT FROM headgate.archive a WHERE a.tenant_no = v_one.tenant_no AND a.id = ids_[o.o])
                   AND NOT EXISTS (SELECT FROM unnest(key_ords_, keys_) AS k(o, key)
                                     JOIN headgate.idempotency_keys i
                                       ON i.tenant_no = v_one.tenant_no AND i.key = k.key AND i.topic_no = v_one.topic_no
                                      AND i.expires_at > v_now
                                    WHERE k.o = o.o)) AS f
        HAVING count(*) FILTER (WHERE f.nth > v_one.max_backlog - v_one.n) > 0;
    END LOOP;
END $$;
