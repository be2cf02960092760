-- Claims up to n_ due jobs of one tenant, best first over all the topics given, and returns them (unordered: the caller
-- sorts by rank_class, rank_at, id). Never more than n_. The caller commits before it sends anything.
--
-- Where to look is the caller's choice, as key ranges: one row per (topic, [class_from, rank_from) … [class_to,
-- rank_to)), in order within a topic. Without a watermark that is one whole range per topic; with one, the ranges leave
-- out the dead prefix of each class (dispatch/watermark.py). hints_ are ids known to have come back below the mark.
--
-- seen_ and generation_ are what the claim before this one has returned: which arrivals it has seen (arrived_v1.sql). Where
-- others have arrived since, outside of the ranges given, this claim looks as well. NULL: look at the ranges given only.
--
-- runs_ and workers_ say who gets what: the first runs_[1] jobs in order go to workers_[1], and so on.
--
-- Separate statements on purpose. READ COMMITTED gives each a new snapshot, so the pause rows are read after the pause
-- lock was taken, and a candidate another instance has claimed meanwhile is seen as such.
--
-- A row with a note is no job. 'limited' (0004_limits.sql): when a topic that was held back may have more (lease_until,
-- beside the present time in created_at): now, at a time, or (NULL) when something of it ends.
--
-- 'news', one row: what to pass next time, seen_ (in worker) and generation_ (in rank_at). Its headers are NULL, or have
-- what the caller needs to keep its watermark right:
--   arrived  ranges [topic, class, from, to] that were looked at although not given
--   locked   such ranges with jobs that others had locked: they may be claimable again, should that claim fail
--   paused   topics that were not looked at        limited  topics of which a limit may have held jobs back
--   ended    [class, rank]: candidates were looked at up to here only, though more could have been taken
--   restart  the arrivals since seen_ are no longer known: everything was looked at, from the head
CREATE FUNCTION headgate.claim_v1(
    tenant_ int, topics_ int[], range_topics_ int[], class_from_ int[], rank_from_ bigint[], class_to_ int[],
    rank_to_ bigint[], hints_ uuid[], n_ int, owner_ int, workers_ text[], runs_ int[], lease_ms_ bigint,
    seen_ text DEFAULT NULL, generation_ bigint DEFAULT NULL)
RETURNS TABLE (id uuid, topic_no int, epoch bigint, attempt int, max_attempts int, priority int, rank_class int,
               rank_at bigint, created_at timestamptz, lease_until timestamptz, worker text, headers jsonb, payload bytea,
               run_at timestamptz, note text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
-- Pinned: a queue's statistics are stale whenever it fills or drains, and a bad plan reads the whole backlog.
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off
SET enable_material = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_paused   int[];
    v_topics   int[];
    v_chosen   uuid[];
    v_chosen_topics int[];
    v_classes  int[];
    v_ranks    bigint[];
    v_seen     pg_snapshot := seen_::pg_snapshot;
    v_running  xid8[];               -- transactions that were under way in it
    v_now_seen text;
    v_generation bigint;
    v_restart  boolean;
    v_arrived  record;
    v_arrivals jsonb;
    v_tried    int;
    v_locked   jsonb := '[]';
    v_news     jsonb;
    v_ended    jsonb;
    v_ids      uuid[] := '{}';       -- locked and still pending, best first
    v_got      uuid[];
    v_round    int := 0;
    v_look     int := n_;
    v_class    int;                  -- the last candidate's key: where the next round continues
    v_rank     bigint;
    v_sorted   uuid[];
    v_slots    int[];
    v_capacities    int[];                -- beside v_topics: how many may start; NULL (or none at all): no limit
    v_left     int[];
    v_got_topics int[];
    v_keyed    boolean;              -- some of them have a limit key
    v_limited  int[] := '{}';
    v_taken    record;
    v_at       timestamptz;          -- when limits were looked at: then that is when the jobs start
    v_waits    int[] := '{}';
    v_wait_ats timestamptz[] := '{}';
    v_now      timestamptz := headgate.clock_v1();
BEGIN
    -- In a snapshot older than the lock below, a pause that has already returned could go unseen.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'headgate.claim_v1 must run at READ COMMITTED' USING ERRCODE = 'invalid_transaction_state';
    END IF;
    -- Pause takes this lock exclusively: once it has returned, no claim that read "open" can still commit.
    PERFORM pg_advisory_xact_lock_shared(4847423, 1 /* dispatch */);
    SELECT array_agg(c.topic_no) INTO v_paused FROM headgate.dispatch_control c
     WHERE c.tenant_no IN (0, tenant_) AND c.paused
       AND (c.paused_until IS NULL OR c.paused_until > v_now);
    IF v_paused IS NULL THEN
        v_topics := topics_;
    ELSIF 0 = ANY (v_paused) THEN      -- everything, or this whole tenant
        RETURN;
    ELSE
        v_topics := ARRAY(SELECT t FROM unnest(topics_) AS t WHERE t <> ALL (v_paused));
    END IF;

    IF seen_ IS NOT NULL THEN v_running := ARRAY(SELECT pg_snapshot_xip(v_seen)); END IF;
    -- One statement: the snapshot returned is the one in which the arrivals were read.
    -- explain: arrivals
    SELECT pg_current_snapshot()::text AS seen, f.generation,
           seen_ IS NOT NULL AND (generation_ + 1 < f.generation      -- some were deleted unseen
                                  OR pg_snapshot_xmax(v_seen) > pg_snapshot_xmax(pg_current_snapshot())) AS restart,
           n.topics, n.classes, n.froms, n.tos
      INTO v_arrived
      FROM headgate.arrivals_floor f
      LEFT JOIN LATERAL (
           SELECT array_agg(a.topic_no) AS topics, array_agg(a.rank_class) AS classes, array_agg(a.rank_from) AS froms,
                  array_agg(a.rank_to) AS tos
             FROM (SELECT a.topic_no, a.rank_class, a.rank_from, a.rank_to FROM headgate.arrivals a   -- index: arrivals_xid
                    WHERE a.xid >= pg_snapshot_xmax(v_seen)
                   UNION ALL
                   SELECT a.topic_no, a.rank_class, a.rank_from, a.rank_to FROM headgate.arrivals a   -- index: arrivals_xid
                    WHERE a.xid = ANY (v_running)) AS a
            WHERE a.topic_no = ANY (v_topics)
              AND NOT EXISTS (SELECT FROM unnest(range_topics_, class_from_, rank_from_, class_to_, rank_to_)
                                          AS r(topic_no, class_from, rank_from, class_to, rank_to)
                               WHERE r.topic_no = a.topic_no AND (r.class_from, r.rank_from) <= (a.rank_class, a.rank_from)
                                 AND (r.class_to, r.rank_to) > (a.rank_class, a.rank_to))) AS n ON seen_ IS NOT NULL
     WHERE f.one;
    -- explain: end
    v_now_seen := v_arrived.seen;
    v_generation := v_arrived.generation;
    v_restart := v_arrived.restart;
    IF v_restart THEN
        SELECT array_agg(t), array_agg(-2147483648), array_agg('-9223372036854775808'::bigint), array_agg(2147483647),
               array_agg(9223372036854775807)
          INTO range_topics_, class_from_, rank_from_, class_to_, rank_to_ FROM unnest(topics_) AS t;
    ELSIF v_arrived.topics IS NOT NULL THEN
        SELECT w.topics_, w.class_from_, w.rank_from_, w.class_to_, w.rank_to_
          INTO range_topics_, class_from_, rank_from_, class_to_, rank_to_
          FROM headgate.with_arrivals_v1(range_topics_, class_from_, rank_from_, class_to_, rank_to_, v_arrived.topics,
                                         v_arrived.classes, v_arrived.froms, v_arrived.tos) AS w;
        v_arrivals := (SELECT jsonb_agg(jsonb_build_array(a.t, a.c, a.f, a.l))
                         FROM unnest(v_arrived.topics, v_arrived.classes, v_arrived.froms, v_arrived.tos) AS a(t, c, f, l));
    END IF;
    IF EXISTS (SELECT FROM headgate.topic_limits l WHERE l.topic_no = ANY (v_topics) AND l.counted) THEN
        v_capacities := headgate.topic_capacity_v1(v_topics, n_);
        v_left := v_capacities;
        v_limited := ARRAY(SELECT r.topic_no FROM unnest(v_topics, v_capacities) AS r(topic_no, capacity) WHERE r.capacity IS NOT NULL);
    END IF;

    -- Normally one round. More only when another claimer holds the candidates: go on after the last one looked at,
    -- looking further each time. At most 15 × n_ candidates, so a crowd of claimers costs a bounded number of reads.
    WHILE v_round < 4 AND cardinality(v_ids) < n_ LOOP
        -- explain: choose
        SELECT array_agg(k.id), array_agg(k.topic_no), array_agg(k.rank_class), array_agg(k.rank_at)
          INTO v_chosen, v_chosen_topics, v_classes, v_ranks
          FROM (SELECT c.id, c.rank_class, c.rank_at, t.topic_no
                  FROM unnest(v_topics, v_left) AS t(topic_no, capacity)
                 CROSS JOIN LATERAL (
                       -- The ranges come in order and each is read in order, so this LIMIT needs no sort and stops early.
                       SELECT j.id, j.rank_class, j.rank_at
                         FROM unnest(range_topics_, class_from_, rank_from_, class_to_, rank_to_)
                              AS r(topic_no, class_from, rank_from, class_to, rank_to)
                        CROSS JOIN LATERAL (
                              -- Not locked here: that would lock topics × n rows and hide them from other instances.
                              -- A range is read in two parts, all classes before its last one and then that one. In one
                              -- part, "< (class_to, rank_to)" would be right, but up to PostgreSQL 17 a scan whose end is
                              -- decided by the second column of such a pair reads on to the end of the class.
                              -- What is hinted at is chosen by its id, below: with two places in the list it would take
                              -- that of another job of its rank, which the next round, looking beyond it, would miss.
                              (SELECT j.id, j.rank_class, j.rank_at FROM headgate.jobs j     -- index: jobs_claim_order
                                WHERE r.class_from < r.class_to AND j.topic_no = t.topic_no AND j.state = 0 /* pending */
                                  AND (j.rank_class, j.rank_at) >= (r.class_from, r.rank_from)
                                  AND j.rank_class < r.class_to
                                  AND (v_round = 0 OR (j.rank_class, j.rank_at) > (v_class, v_rank))
                                  AND (v_round > 0 OR j.id <> ALL (hints_))
                                ORDER BY j.rank_class, j.rank_at LIMIT v_look)
                              UNION ALL
                              (SELECT j.id, j.rank_class, j.rank_at FROM headgate.jobs j     -- index: jobs_claim_order
                                WHERE r.class_from <= r.class_to AND j.topic_no = t.topic_no AND j.state = 0 /* pending */
                                  AND j.rank_class = r.class_to AND j.rank_at < r.rank_to
                                  AND j.rank_at >= CASE WHEN r.class_from = r.class_to THEN r.rank_from
                                                        ELSE '-9223372036854775808'::bigint END
                                  AND (v_round = 0 OR (j.rank_class, j.rank_at) > (v_class, v_rank))
                                  AND (v_round > 0 OR j.id <> ALL (hints_))
                                ORDER BY j.rank_class, j.rank_at LIMIT v_look)) AS j
                        WHERE r.topic_no = t.topic_no
                        LIMIT least(v_look, t.capacity)) AS c
                 UNION ALL
                SELECT h.id, h.rank_class, h.rank_at, h.topic_no
                  FROM (SELECT j.id, j.topic_no, j.rank_class, j.rank_at, j.state FROM headgate.jobs j
                         WHERE v_round = 0 AND j.tenant_no = tenant_ AND j.id = ANY (hints_) OFFSET 0) AS h
                 WHERE h.state = 0 /* pending */ AND h.topic_no = ANY (v_topics)
                 ORDER BY 2, 3, 1 LIMIT v_look) AS k;
        -- explain: end
        EXIT WHEN v_chosen IS NULL;
        v_class := v_classes[cardinality(v_classes)];
        v_rank := v_ranks[cardinality(v_ranks)];
        -- explain: lock
        SELECT array_agg(l.id), array_agg(l.topic_no), bool_or(l.flags & 4 /* limit_key */ <> 0) 
          INTO v_got, v_got_topics, v_keyed
          FROM (SELECT j.id, j.topic_no, j.flags FROM headgate.jobs j
                 -- No plain test of the state: it would invite the partial index instead of the key. A candidate that
                 -- another claimer has taken fails it after the lock (the row is checked again in its newest version).
                 WHERE j.tenant_no = tenant_ AND j.id = ANY (v_chosen) AND j.state + 0 = 0 /* pending */
                 ORDER BY j.rank_class, j.rank_at, j.id LIMIT n_ - cardinality(v_ids)
                   FOR UPDATE SKIP LOCKED) AS l;      -- never waits, so it can never be part of a deadlock
        -- explain: end
        -- How many were tried: all, or as many as it took to have enough.
        v_tried := CASE WHEN cardinality(v_got) = n_ - cardinality(v_ids)
                        THEN array_position(v_chosen, v_got[cardinality(v_got)]) ELSE cardinality(v_chosen) END;
        IF v_tried > coalesce(cardinality(v_got), 0) THEN
            -- Taken by others meanwhile, or locked: then they may be claimable again without a new arrival, should the
            -- transaction that holds them fail.
            SELECT v_locked || coalesce(jsonb_agg(jsonb_build_array(r.topic_no, r.rank_class, r.rank_from, r.rank_to)), '[]')
              INTO v_locked
              FROM (SELECT array_agg(u.t) AS t, array_agg(u.c) AS c, array_agg(u.r) AS r
                      FROM unnest(v_chosen[:v_tried], v_chosen_topics[:v_tried], v_classes[:v_tried], v_ranks[:v_tried])
                           AS u(id, t, c, r)
                     WHERE u.id NOT IN (SELECT g FROM unnest(v_got) AS g)) AS m
             CROSS JOIN LATERAL headgate.key_ranges_v1(m.t, m.c, m.r) AS r;
        END IF;
        IF (v_keyed OR v_capacities IS NOT NULL) AND v_got IS NOT NULL THEN
            v_taken := headgate.take_limited_v1(tenant_, v_got, v_got_topics, v_topics, v_left, v_keyed, v_at);
            v_at := v_taken.at_;
            v_got := v_taken.ids;
            v_left := v_taken.capacities;
            v_waits := v_waits || v_taken.wait_topics;
            v_wait_ats := v_wait_ats || v_taken.wait_ats;
        END IF;
        v_ids := v_ids || v_got;
        EXIT WHEN cardinality(v_chosen) < v_look;     -- there was no more to see
        v_round := v_round + 1;
        v_look := n_ << v_round;
    END LOOP;
    IF v_round = 4 AND cardinality(v_ids) < n_ THEN v_ended := jsonb_build_array(v_class, v_rank); END IF;
    IF v_capacities IS NOT NULL THEN
        v_at := coalesce(v_at, headgate.clock_v1());
        SELECT v_waits || array_agg(w.topic_no), v_wait_ats || array_agg(w.at) INTO v_waits, v_wait_ats
          FROM headgate.close_claim_v1(v_topics, v_capacities, v_left, n_, cardinality(v_ids), v_at) AS w;
    END IF;
    IF cardinality(v_waits) > 0 THEN      -- what has more now is asked again anyhow, after a full claim
        v_now := headgate.clock_v1();
        RETURN QUERY SELECT NULL::uuid, w.topic_no, NULL::bigint, NULL::int, NULL::int, NULL::int, NULL::int, NULL::bigint,
                            v_now, w.at, NULL::text, NULL::jsonb, NULL::bytea, NULL::timestamptz, 'limited'
                       FROM unnest(v_waits, v_wait_ats) AS w(topic_no, at)
                      WHERE cardinality(v_ids) < n_ OR w.at > v_now;
    END IF;
    IF v_restart OR v_arrivals IS NOT NULL OR v_locked <> '[]' OR v_paused IS NOT NULL OR v_capacities IS NOT NULL
       OR v_ended IS NOT NULL THEN
        v_news := jsonb_strip_nulls(jsonb_build_object(
            'arrived', v_arrivals, 'locked', nullif(v_locked, '[]'), 'ended', v_ended, 'restart', nullif(v_restart, false),
            'paused', to_jsonb(v_paused), 'limited', to_jsonb(nullif(v_limited, '{}'))));
    END IF;
    RETURN QUERY SELECT NULL::uuid, 0, NULL::bigint, NULL::int, NULL::int, NULL::int, NULL::int, v_generation, v_now, v_now,
                        v_now_seen, v_news, NULL::bytea, NULL::timestamptz, 'news';
    IF cardinality(v_ids) = 0 THEN RETURN; END IF;

    -- Who gets which: a place in the order becomes a slot number, laid out in id order so that the update can find it
    -- by binary search (width_bucket). The hot table is never joined to a set.
    IF cardinality(workers_) > 1 THEN
        SELECT array_agg(p.id ORDER BY p.id), array_agg(p.slot ORDER BY p.id) INTO v_sorted, v_slots
          FROM (SELECT o.id, width_bucket(o.n::int - 1, s.starts) AS slot
                  FROM unnest(v_ids) WITH ORDINALITY AS o(id, n),
                       (SELECT array_agg(b.start ORDER BY b.start) AS starts FROM (
                               SELECT (sum(r.len) OVER (ORDER BY r.i) - r.len)::int AS start
                                 FROM unnest(runs_) WITH ORDINALITY AS r(len, i)) AS b) AS s) AS p;
    END IF;
    v_now := coalesce(v_at, headgate.clock_v1());      -- read again: the lease begins now, not when the pause lock was asked for
    RETURN QUERY
    -- explain: take
    WITH taken AS (
        UPDATE headgate.jobs j
           SET state = 1 /* running */, attempt = j.attempt + 1, claimed_at = v_now, owner = owner_,
               -- At the end of its range, on in a new one: no other row of this id can have had that (ADR 19).
               epoch = CASE WHEN j.epoch & 1023 = 1023 THEN nextval('headgate.epoch_ranges') << 10 ELSE j.epoch END + 1,
               lease_until = v_now + lease_ms_ * interval '1 ms', lease_ms = lease_ms_,
               flags = CASE WHEN j.topic_no = ANY (v_limited) THEN j.flags | 128 /* counted */
                            ELSE j.flags & ~128 /* counted */ END,
               worker = CASE WHEN v_slots IS NULL THEN workers_[1]
                             ELSE workers_[v_slots[width_bucket(j.id, v_sorted)]] END
         WHERE j.tenant_no = tenant_ AND j.id = ANY (v_ids) AND j.state + 0 = 0 /* pending */
        RETURNING j.id, j.topic_no, j.epoch, j.attempt, j.max_attempts, j.priority, j.rank_class, j.rank_at,
                  j.created_at, j.lease_until, j.worker, j.headers, j.payload, j.flags, j.run_at),
    counted AS (
        INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
        SELECT tenant_, t.topic_no, 0 /* pending */, 1 /* running */, count(*), v_now FROM taken t GROUP BY 2)
    SELECT t.id, t.topic_no, t.epoch, t.attempt, t.max_attempts, t.priority, t.rank_class, t.rank_at, t.created_at,
           t.lease_until, t.worker, t.headers,
           CASE WHEN t.flags & 1 /* payload_apart */ = 0 THEN t.payload
                ELSE (SELECT p.payload FROM headgate.payloads p WHERE p.tenant_no = tenant_ AND p.id = t.id) END,
           -- When it fell due, unless that was at its submit: most did, and NULL costs the reader least.
           CASE WHEN t.run_at <> t.created_at THEN t.run_at END, NULL::text
      FROM taken t;
    -- explain: end
END $$;
