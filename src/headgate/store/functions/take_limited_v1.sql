-- Of jobs a claim has locked, best first, those that may run: no more of a topic than its capacity, no more of a key than its
-- limits (they may have been lowered since it was admitted: then it goes back to its line). Counts the keys' ones as running.
-- at_ is the time of the claim, set by the first call, behind its locks: buckets are charged at the time that is
-- stored as the start of the jobs, or a window of time could hold a few more.
CREATE FUNCTION headgate.take_limited_v1(
    tenant_ int, ids_ uuid[], id_topics_ int[], topics_ int[], capacities_ int[], keyed_ boolean, INOUT at_ timestamptz,
    OUT ids uuid[], OUT capacities int[], OUT wait_topics int[], OUT wait_ats timestamptz[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    v_now     timestamptz;
    v_refused uuid[];
    v_passed  uuid[];
    v_ids     uuid[];              -- those with a key, best first; beside them the index of their key, and their rank within it
    v_of      int[];
    v_nths    int[];
    v_sorted  uuid[];              -- all ids in their own order; beside them their places in `ids`
    v_places  int[];
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
    capacities := capacities_;
    IF capacities_ IS NOT NULL THEN
        ids := coalesce((SELECT array_agg(g.id ORDER BY g.n)
                           FROM (SELECT g.id, g.n, g.topic_no, row_number() OVER (PARTITION BY g.topic_no ORDER BY g.n) AS nth
                                   FROM unnest(ids_, id_topics_) WITH ORDINALITY AS g(id, topic_no, n)) AS g
                          WHERE coalesce(g.nth <= capacities_[array_position(topics_, g.topic_no)], true)), '{}');
    END IF;
    IF keyed_ AND cardinality(ids) > 0 THEN
        -- A key's place in v_keys stands for it below: arrays instead of joins, and one visit to each row. The keys are read
        -- in one scan of the index: ids of jobs that are claimed together are neighbours there.
        SELECT array_agg(o.id ORDER BY o.id), array_agg(o.n::int ORDER BY o.id) INTO v_sorted, v_places
          FROM unnest(ids) WITH ORDINALITY AS o(id, n);
        WITH asked AS MATERIALIZED (
            SELECT k.job_id AS id, v_places[width_bucket(k.job_id, v_sorted)] AS n, k.topic_no, k.limit_key,
                   dense_rank() OVER (ORDER BY k.topic_no, k.limit_key) AS k
              FROM headgate.job_limit_keys k WHERE k.tenant_no = tenant_ AND k.job_id = ANY (v_sorted))
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
                   -- Charged meanwhile by a claim that is later than this one: its tokens are of a later time.
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
                   -- A claim changes what a key may have pending by fair shares (topped up when half is used) and by rate.
                   j.taken < j.n OR h.key_rate_count IS NOT NULL
                     OR coalesce(h.fair_by_key AND v_admitted[h.k] - j.n <= 5, false) AS again
              FROM (SELECT j.k, count(*) FILTER (WHERE j.good) AS taken, count(*) AS n FROM judged j WHERE NOT j.passed GROUP BY 1) AS j
              JOIN held h ON h.k = j.k),
        counted AS (
            UPDATE headgate.limit_usage u
               SET running = u.running + s.taken, admitted = u.admitted - s.n,
                   tokens = CASE WHEN s.rated THEN s.tokens - s.taken END,
                   -- Not back to before a later claim has charged it: it would get tokens twice for the time between. The
                   -- first call has read the clock behind the locks: what lies ahead of that is from before a step back.
                   refilled_at = CASE WHEN NOT s.rated THEN NULL WHEN v_skipped THEN greatest(v_refilled[s.k], v_now)
                                      ELSE v_now END
              FROM summed s WHERE u.ctid = v_ctids[s.k])      -- locked by us: it is where it was
        SELECT (SELECT array_agg(j.id ORDER BY j.id) FROM judged j WHERE NOT j.good AND NOT j.passed),
               (SELECT array_agg(j.id) FROM judged j WHERE j.passed),
               array_agg(v_topics[s.k]) FILTER (WHERE s.again), array_agg(v_keys[s.k]) FILTER (WHERE s.again),
               array_agg(s.taken::int) FILTER (WHERE s.again)
          INTO v_refused, v_passed, v_again, v_again_keys, v_most FROM summed s;
        IF v_refused IS NOT NULL THEN
            UPDATE headgate.jobs j SET state = 4 /* blocked */ WHERE j.tenant_no = tenant_ AND j.id = ANY (v_refused);
            INSERT INTO headgate.limit_line (tenant_no, job_id, topic_no, limit_key, rank_class, rank_at)
            SELECT tenant_, j.id, k.topic_no, k.limit_key, j.rank_class, j.rank_at
              FROM (SELECT j.id, j.rank_class, j.rank_at FROM headgate.jobs j
                     WHERE j.tenant_no = tenant_ AND j.id = ANY (v_refused) OFFSET 0) AS j
             CROSS JOIN LATERAL (SELECT k.topic_no, k.limit_key FROM headgate.job_limit_keys k
                                  WHERE k.tenant_no = tenant_ AND k.job_id = j.id LIMIT 1) AS k
            ON CONFLICT (tenant_no, job_id) DO NOTHING;
            INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
            SELECT tenant_, k.topic_no, 0 /* pending */, 4 /* blocked */, count(*), v_now FROM headgate.job_limit_keys k
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
    IF capacities_ IS NOT NULL THEN
        capacities := ARRAY(SELECT r.capacity - (SELECT count(*) FROM unnest(ids_, id_topics_) AS g(id, topic_no)
                                         WHERE g.topic_no = topics_[r.o] AND g.id = ANY (ids))::int
                         FROM unnest(capacities_) WITH ORDINALITY AS r(capacity, o) ORDER BY r.o);
    END IF;
END $$;
