-- A plain flush of submits (no keys, tags, limit keys or links, nothing sent before, due now) whose worker already waits:
-- submits and claims in one call. Returns what submit_v1 returns (the first four columns) and what claim_v1 returns (the
-- others), for the arguments of both.
--
-- One small job on an idle topic, which is the case that matters here, is inserted as running: one statement that looks
-- and one that writes, instead of eleven, and neither an index entry nor a row version that is dead at once. It is what
-- submit_v1 and claim_v1 would have done, one right after the other: under the pause lock, with no pause, no limit, no
-- better job in sight and nothing remembered as sent again. In any other case those two do it.
CREATE FUNCTION headgate.hand_over_v1(
    tenant_nos_ int[], ids_ uuid[], topic_nos_ int[], payloads_ bytea[],
    priorities_ int[], rank_classes_ int[], rank_offsets_ bigint[], delays_ms_ bigint[], run_ats_ timestamptz[],
    max_attempts_ int[], policy_nos_ int[], headers_ jsonb[], stale_ords_ int[],
    key_ords_ int[], keys_ text[], key_hashes_ bytea[], key_windows_ms_ bigint[], tag_ords_ int[], tags_ text[],
    limit_ords_ int[], limit_keys_ text[], flags_ smallint[],
    tenant_ int, topics_ int[], range_topics_ int[], class_from_ int[], rank_from_ bigint[], class_to_ int[],
    rank_to_ bigint[], hints_ uuid[], n_ int, owner_ int, workers_ text[], runs_ int[], lease_ms_ bigint)
RETURNS TABLE (ord int, receipt smallint, job_id uuid, detail bigint[],
               id uuid, topic_no int, epoch int, attempt int, max_attempts int, priority int, rank_class int,
               rank_at bigint, created_at timestamptz, lease_until timestamptz, worker text, headers jsonb, payload bytea)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now    timestamptz;
    v_now_us bigint;
BEGIN
    IF cardinality(ids_) = 1 AND tenant_nos_[1] = tenant_ AND topic_nos_[1] = ANY (topics_)
       AND octet_length(payloads_[1]) <= 1024 AND cardinality(hints_) = 0 AND coalesce(flags_[1], 0) = 0
       AND current_setting('transaction_isolation') = 'read committed' THEN
        PERFORM pg_advisory_xact_lock_shared(4847423, 1);      -- see claim_v1
        v_now := headgate.clock_v1();
        IF NOT EXISTS (
            -- explain: look
            SELECT FROM headgate.dispatch_control c
             WHERE c.tenant_no IN (0, tenant_) AND c.topic_no IN (0, topic_nos_[1]) AND c.paused
               AND (c.paused_until IS NULL OR c.paused_until > v_now)
            UNION ALL
            SELECT FROM headgate.topic_limits l WHERE l.topic_no = topic_nos_[1]
            UNION ALL
            SELECT FROM headgate.resent_ids
            UNION ALL
            SELECT FROM unnest(range_topics_, class_from_, rank_from_, class_to_, rank_to_)
                        AS r(topic_no, class_from, rank_from, class_to, rank_to)
             CROSS JOIN LATERAL (
                   -- Without a sort nothing would say that the index is to be read in its order, and from its place.
                   (SELECT FROM headgate.jobs j     -- index: jobs_claim_order
                     WHERE r.class_from < r.class_to AND j.topic_no = r.topic_no AND j.state = 0
                       AND (j.rank_class, j.rank_at) >= (r.class_from, r.rank_from) AND j.rank_class < r.class_to
                     ORDER BY j.rank_class, j.rank_at LIMIT 1)
                   UNION ALL
                   (SELECT FROM headgate.jobs j     -- index: jobs_claim_order
                     WHERE r.class_from <= r.class_to AND j.topic_no = r.topic_no AND j.state = 0
                       AND j.rank_class = r.class_to AND j.rank_at < r.rank_to
                       AND j.rank_at >= CASE WHEN r.class_from = r.class_to THEN r.rank_from
                                             ELSE '-9223372036854775808'::bigint END
                     ORDER BY j.rank_class, j.rank_at LIMIT 1)) AS waiting
            -- explain: end
        ) THEN
            v_now_us := (extract(epoch FROM v_now) * 1000000)::bigint;
            RETURN QUERY
            WITH made AS (
                INSERT INTO headgate.jobs AS j (id, rank_at, created_at, run_at, claimed_at, lease_until, tenant_no,
                       topic_no, rank_class, priority, attempt, max_attempts, epoch, policy_no, owner, state, worker,
                       headers, payload)
                VALUES (ids_[1], v_now_us + 1 + coalesce(rank_offsets_[1], 0), v_now, v_now, v_now,
                        v_now + lease_ms_ * interval '1 ms', tenant_, topic_nos_[1], coalesce(rank_classes_[1], -1),
                        coalesce(priorities_[1], 0), 1, coalesce(max_attempts_[1], 20), 1, coalesce(policy_nos_[1], 1),
                        owner_, 1, workers_[1], headers_[1], payloads_[1])
                ON CONFLICT (tenant_no, id) DO NOTHING
                RETURNING j.id, j.topic_no, j.epoch, j.attempt, j.max_attempts, j.priority, j.rank_class, j.rank_at,
                          j.created_at, j.lease_until, j.worker, j.headers, j.payload),
            counted AS (
                INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
                SELECT tenant_, m.topic_no, s.from_state, s.from_state + 1, 1, v_now
                  FROM made m, (VALUES (-1), (0)) AS s(from_state))
            SELECT NULL::int, NULL::smallint, NULL::uuid, NULL::bigint[], m.id, m.topic_no, m.epoch, m.attempt,
                   m.max_attempts, m.priority, m.rank_class, m.rank_at, m.created_at, m.lease_until, m.worker, m.headers,
                   m.payload
              FROM made m;
            IF FOUND THEN RETURN; END IF;
        END IF;
    END IF;
    -- Each statement within these has a snapshot of its own, so the claim finds what was submitted.
    RETURN QUERY
    SELECT s.ord, s.receipt, s.job_id, s.detail, NULL::uuid, NULL::int, NULL::int, NULL::int, NULL::int, NULL::int, NULL::int,
           NULL::bigint, NULL::timestamptz, NULL::timestamptz, NULL::text, NULL::jsonb, NULL::bytea
      FROM headgate.submit_v1(tenant_nos_, ids_, topic_nos_, payloads_, priorities_, rank_classes_, rank_offsets_,
                              delays_ms_, run_ats_, max_attempts_, policy_nos_, headers_, stale_ords_, key_ords_, keys_,
                              key_hashes_, key_windows_ms_, tag_ords_, tags_, limit_ords_, limit_keys_, flags_) AS s;
    RETURN QUERY
    SELECT NULL::int, NULL::smallint, NULL::uuid, NULL::bigint[], c.id, c.topic_no, c.epoch, c.attempt, c.max_attempts,
           c.priority, c.rank_class, c.rank_at, c.created_at, c.lease_until, c.worker, c.headers, c.payload
      FROM headgate.claim_v1(tenant_, topics_, range_topics_, class_from_, rank_from_, class_to_, rank_to_, hints_, n_,
                             owner_, workers_, runs_, lease_ms_) AS c;
END $$;
