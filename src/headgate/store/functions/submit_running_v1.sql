-- One small plain job (no key, tag, limit key or dependency, not sent before, due now) whose worker already waits: what
-- submit_claim_v1 does for many, and with its columns. It is the case of an idle system, where every argument counts.
--
-- On an idle topic it is inserted as running: one statement that looks and one that writes, instead of eleven, and
-- neither an index entry nor a row version that is dead at once. It is what submit_v1 and claim_v1 would have done, one
-- right after the other: under the pause lock, with no pause, no limit, no better job in sight and nothing remembered
-- as sent again. In any other case those two do it.
CREATE FUNCTION headgate.submit_running_v1(
    tenant_ int, id_ uuid, topic_ int, payload_ bytea, priority_ int, rank_class_ int, rank_offset_ bigint,
    max_attempts_ int, policy_no_ int, headers_ jsonb, new_id_until_ timestamptz,
    topics_ int[], range_topics_ int[], class_from_ int[], rank_from_ bigint[], class_to_ int[], rank_to_ bigint[],
    n_ int, owner_ int, workers_ text[], runs_ int[], lease_ms_ bigint, seen_ text, generation_ bigint)
RETURNS TABLE (ord int, receipt smallint, job_id uuid, detail bigint[],
               id uuid, topic_no int, epoch bigint, attempt int, max_attempts int, priority int, rank_class int,
               rank_at bigint, created_at timestamptz, lease_until timestamptz, worker text, headers jsonb, payload bytea,
               run_at timestamptz, note text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now    timestamptz;
    v_now_us bigint;
    v_seen   pg_snapshot := seen_::pg_snapshot;
    v_running xid8[];
BEGIN
    IF seen_ IS NOT NULL THEN v_running := ARRAY(SELECT pg_snapshot_xip(v_seen)); END IF;
    IF topic_ = ANY (topics_) AND octet_length(payload_) <= 1024
       AND current_setting('transaction_isolation') = 'read committed' THEN
        PERFORM pg_advisory_xact_lock_shared(4847423, 1 /* dispatch */);      -- see claim_v1
        v_now := headgate.clock_v1();
        IF (new_id_until_ <= v_now) IS NOT TRUE AND NOT EXISTS (
            -- explain: look
            SELECT FROM headgate.dispatch_control c
             WHERE c.tenant_no IN (0, tenant_) AND c.topic_no IN (0, topic_) AND c.paused
               AND (c.paused_until IS NULL OR c.paused_until > v_now)
            UNION ALL
            SELECT FROM headgate.topic_limits l WHERE l.topic_no = topic_
            UNION ALL
            SELECT FROM headgate.tenants t WHERE t.tenant_no = tenant_ AND t.bounded      -- index: tenants_bounded
            UNION ALL
            SELECT FROM headgate.resent_ids
            UNION ALL
            -- Anything that has arrived since the last claim may be better, and lie outside of the ranges.
            SELECT FROM headgate.arrivals a WHERE a.xid >= pg_snapshot_xmax(v_seen) AND a.topic_no = ANY (topics_)
            UNION ALL
            SELECT FROM headgate.arrivals a WHERE a.xid = ANY (v_running) AND a.topic_no = ANY (topics_)
            UNION ALL
            SELECT FROM headgate.arrivals_floor f WHERE generation_ + 1 < f.generation
                OR pg_snapshot_xmax(v_seen) > pg_snapshot_xmax(pg_current_snapshot())
            UNION ALL
            SELECT FROM unnest(range_topics_, class_from_, rank_from_, class_to_, rank_to_)
                        AS r(topic_no, class_from, rank_from, class_to, rank_to)
             CROSS JOIN LATERAL (
                   -- Without a sort nothing would say that the index is to be read in its order, and from its place.
                   (SELECT FROM headgate.jobs j     -- index: jobs_claim_order
                     WHERE r.class_from < r.class_to AND j.topic_no = r.topic_no AND j.state = 0 /* pending */
                       AND (j.rank_class, j.rank_at) >= (r.class_from, r.rank_from) AND j.rank_class < r.class_to
                     ORDER BY j.rank_class, j.rank_at LIMIT 1)
                   UNION ALL
                   (SELECT FROM headgate.jobs j     -- index: jobs_claim_order
                     WHERE r.class_from <= r.class_to AND j.topic_no = r.topic_no AND j.state = 0 /* pending */
                       AND j.rank_class = r.class_to AND j.rank_at < r.rank_to
                       AND j.rank_at >= CASE WHEN r.class_from = r.class_to THEN r.rank_from
                                             ELSE '-9223372036854775808'::bigint END
                     ORDER BY j.rank_class, j.rank_at LIMIT 1)) AS waiting
            -- explain: end
        ) THEN
            v_now_us := (extract(epoch FROM v_now) * 1000000)::bigint;
            IF headers_ IS NOT NULL THEN headers_ := headgate.deadline_v1(headers_, v_now); END IF;
            RETURN QUERY
            WITH made AS (
                INSERT INTO headgate.jobs AS j (id, rank_at, created_at, run_at, claimed_at, lease_until, tenant_no,
                       topic_no, rank_class, priority, attempt, max_attempts, epoch, policy_no, owner, lease_ms, state, worker,
                       headers, payload)
                VALUES (id_, v_now_us + 1 + coalesce(rank_offset_, 0), v_now, v_now, v_now,
                        v_now + lease_ms_ * interval '1 ms', tenant_, topic_, coalesce(rank_class_, -1),
                        coalesce(priority_, 0), 1, coalesce(max_attempts_, 20),
                        (nextval('headgate.epoch_ranges') << 10) + 1, coalesce(policy_no_, 1),
                        owner_, lease_ms_, 1, workers_[1], headers_, payload_)
                ON CONFLICT (tenant_no, id) DO NOTHING
                RETURNING j.id, j.topic_no, j.epoch, j.attempt, j.max_attempts, j.priority, j.rank_class, j.rank_at,
                          j.created_at, j.lease_until, j.worker, j.headers, j.payload),
            counted AS (
                INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
                SELECT tenant_, m.topic_no, s.from_state, s.from_state + 1, 1, v_now
                  FROM made m, (VALUES (-1), (0)) AS s(from_state))
            SELECT NULL::int, NULL::smallint, NULL::uuid, NULL::bigint[], m.id, m.topic_no, m.epoch, m.attempt,
                   m.max_attempts, m.priority, m.rank_class, m.rank_at, m.created_at, m.lease_until, m.worker, m.headers,
                   m.payload, NULL::timestamptz, NULL::text
              FROM made m;
            IF FOUND THEN
                -- As in submit_v1, in a later statement: the id may have been sent again, run and archived since the look.
                IF EXISTS (SELECT FROM headgate.resent_ids r WHERE r.tenant_no = tenant_ AND r.id = id_) THEN
                    RAISE EXCEPTION 'job % was sent again meanwhile', id_ USING ERRCODE = 'serialization_failure';
                END IF;
                RETURN;
            END IF;
        END IF;
    END IF;
    RETURN QUERY
    SELECT *
      FROM headgate.submit_claim_v1(
               ARRAY[tenant_], ARRAY[id_], ARRAY[topic_], ARRAY[payload_], ARRAY[priority_], ARRAY[rank_class_],
               ARRAY[rank_offset_], '{}', '{}', ARRAY[max_attempts_], ARRAY[policy_no_], ARRAY[headers_], '{}',
               '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', new_id_until_,
               tenant_, topics_, range_topics_, class_from_, rank_from_, class_to_, rank_to_, '{}', n_, owner_, workers_,
               runs_, lease_ms_, seen_, generation_);
END $$;
