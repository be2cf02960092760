-- Failed, Nack, Abandon, Snooze and (from the watchdog) LeaseExpired, for one tenant: domain/lifecycle.settle in SQL.
-- A row per ord comes back: receipt 0 applied, with the new state and due time; else see receipts_v1. Notes as in
-- settle_v1.
--
-- Lock, decide, write: three statements. The decisions lie in arrays sorted by id, and the writes find theirs by binary
-- search (width_bucket): joining the hot table to a set goes wrong on stale statistics.
CREATE FUNCTION headgate.settle_other_v1(
    tenant_ int, ids_ uuid[], epochs_ bigint[], kinds_ smallint[], delays_ms_ bigint[], permanents_ boolean[],
    reasons_ text[], error_types_ text[], error_messages_ text[], error_traces_ text[])
RETURNS TABLE (ord int, receipt smallint, state smallint, run_at timestamptz, note text, topic_no int)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_nestloop = off
SET enable_hashjoin = on        -- the watchdog, which calls this too, has switched it off for its own statement
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now      timestamptz := headgate.clock_v1();
    v_ids      uuid[];          -- what is to change, ascending by id; the arrays below run parallel
    v_ords     int[];
    v_states   smallint[];
    v_run_ats  timestamptz[];
    v_kinds    smallint[];
    v_errors   text[];
    v_final    uuid[];
    v_related   uuid[];          -- of those that ended: others wait for it, or it has a unique key
    v_limited  uuid[];          -- counted against a limit, of their topic or their key
BEGIN
    WITH given AS MATERIALIZED (
        SELECT u.id, u.epoch, u.kind, u.delay_ms, u.permanent, u.message, u.n::int AS n
          FROM unnest(ids_, epochs_, kinds_, delays_ms_, permanents_,
                      (SELECT array_agg(coalesce(nullif(e.type || ': ', ': ') || e.message, e.message, e.reason) ORDER BY e.n)
                         FROM unnest(error_types_, error_messages_, reasons_) WITH ORDINALITY AS e(type, message, reason, n)))
               WITH ORDINALITY AS u(id, epoch, kind, delay_ms, permanent, message, n)),
    held AS MATERIALIZED (
        SELECT j.id, j.epoch, j.attempt, j.max_attempts, j.policy_no, j.flags FROM headgate.jobs j
         WHERE j.tenant_no = tenant_ AND j.id = ANY (ids_) AND j.state + 0 = 1 /* running */
         ORDER BY j.id FOR UPDATE),          -- one order for all sessions that wait for locks
    judged AS MATERIALIZED (
        SELECT h.id, t.n, t.kind, left(t.message, 1000) AS message,
               -- how long until it may run again; NULL: never
               CASE WHEN h.flags & 16 /* cancel_requested */ <> 0 THEN NULL  -- cancel was requested
                    WHEN t.kind IN (3, 4) /* abandon, snooze */ THEN coalesce(t.delay_ms, 0)                         -- abandon, snooze: free
                    WHEN t.permanent OR h.attempt >= h.max_attempts THEN NULL
                    WHEN t.kind = 2 /* nack */ THEN t.delay_ms                                            -- nack: its own delay
                    ELSE coalesce(
                        (SELECT headgate.retry_delay_ms_v1(p.kind, p.base_ms, p.cap_ms, p.delays_ms, h.attempt, h.id)
                           FROM headgate.retry_policies p WHERE p.policy_no = h.policy_no),
                        -- No foreign key guards the number. A job without its policy is retried, not given up.
                        (SELECT headgate.retry_delay_ms_v1(p.kind, p.base_ms, p.cap_ms, p.delays_ms, h.attempt, h.id)
                           FROM headgate.retry_policies p WHERE p.policy_no = 1 /* the default */)) END AS wait_ms,
               h.flags & 16 /* cancel_requested */ <> 0 AS cancelled,
                      h.flags & 2080 /* has_dependants | unique */ <> 0 AS related,
                             h.flags & 132 /* limit_key | counted */ <> 0 AS limited,
               h.flags & 4 /* limit_key */ <> 0 AS keyed
          FROM given t JOIN held h ON h.id = t.id AND h.epoch = t.epoch)
    SELECT array_agg(v.id ORDER BY v.id), array_agg(v.n ORDER BY v.id), array_agg(v.kind ORDER BY v.id),
           array_agg(v.message ORDER BY v.id),
           array_agg((CASE WHEN v.cancelled THEN 7 /* cancelled */ WHEN v.wait_ms IS NULL THEN 6 /* dead */
                           WHEN v.wait_ms = 0 AND v.keyed THEN 4 /* blocked: into its key's line */
                           WHEN v.wait_ms = 0 THEN 0 /* pending */
                           WHEN v.kind = 4 /* snooze */ THEN 2 /* scheduled */ ELSE 3 /* retrying */ END)::smallint ORDER BY v.id),
           array_agg(CASE WHEN v.kind = 3 /* abandon */ THEN NULL ELSE v_now + v.wait_ms * interval '1 ms' END ORDER BY v.id),
           array_agg(v.id ORDER BY v.id) FILTER (WHERE v.wait_ms IS NULL),
           array_agg(v.id ORDER BY v.id) FILTER (WHERE v.wait_ms IS NULL AND v.related),
           array_agg(v.id ORDER BY v.id) FILTER (WHERE v.limited)
      INTO v_ids, v_ords, v_kinds, v_errors, v_states, v_run_ats, v_final, v_related, v_limited
      FROM judged v;

    IF v_ids IS NOT NULL THEN
        -- The history is written first, while the rows still say who ran the attempt.
        INSERT INTO headgate.job_events (tenant_no, job_id, at, kind, epoch, attempt, state, run_at, claimed_at, worker,
                                         reason, error_type, error_message, error_trace)
        SELECT tenant_, j.id, v_now,
               CASE d.kind WHEN 1 THEN 1 /* failed */ WHEN 2 THEN 2 /* nacked */ WHEN 3 THEN 4 /* abandoned */
                           WHEN 4 THEN 5 /* snoozed */ ELSE 3 /* lease_expired */ END,
               j.epoch, j.attempt, d.state, d.run_at, j.claimed_at, j.worker,
               d.reason, d.error_type, d.error_message, d.error_trace
          FROM (SELECT j.id, j.epoch, j.attempt, j.claimed_at, j.worker FROM headgate.jobs j
                 WHERE j.tenant_no = tenant_ AND j.id = ANY (v_ids) OFFSET 0) AS j
          JOIN (SELECT v.id, v.kind, v.state, v.run_at, t.reason, t.error_type, t.error_message, t.error_trace
                  FROM unnest(v_ids, v_ords, v_kinds, v_states, v_run_ats) AS v(id, n, kind, state, run_at)
                  JOIN unnest(reasons_, error_types_, error_messages_, error_traces_) WITH ORDINALITY
                       AS t(reason, error_type, error_message, error_trace, n) ON t.n = v.n) AS d ON d.id = j.id;

        WITH ended AS (
            DELETE FROM headgate.jobs j
             WHERE v_final IS NOT NULL AND j.tenant_no = tenant_ AND j.id = ANY (v_final) AND j.state + 0 = 1 /* running */
            RETURNING j.id, j.created_at, j.run_at, j.claimed_at, j.topic_no, j.priority, j.attempt, j.max_attempts,
                      j.epoch, j.policy_no, j.owner, j.flags, j.worker, j.last_error, j.headers, j.progress, j.payload),
        kept AS (
            INSERT INTO headgate.archive (id, created_at, run_at, claimed_at, finished_at, tenant_no, topic_no, priority,
                                          attempt, max_attempts, epoch, policy_no, owner, state, flags, last_outcome,
                                          worker, last_error, headers, progress, payload)
            SELECT e.id, e.created_at, e.run_at, e.claimed_at, v_now, tenant_, e.topic_no, e.priority, e.attempt,
                   e.max_attempts, e.epoch, e.policy_no, e.owner, v_states[width_bucket(e.id, v_ids)], e.flags,
                   v_kinds[width_bucket(e.id, v_ids)], e.worker,
                   coalesce(v_errors[width_bucket(e.id, v_ids)], e.last_error), e.headers, e.progress, e.payload
              FROM ended e
            RETURNING topic_no, state),
        moved AS (
            UPDATE headgate.jobs j
               SET state = v_states[width_bucket(j.id, v_ids)],
                   run_at = coalesce(v_run_ats[width_bucket(j.id, v_ids)], j.run_at),
                   last_outcome = v_kinds[width_bucket(j.id, v_ids)],
                   last_error = coalesce(v_errors[width_bucket(j.id, v_ids)], j.last_error),
                   -- Abandon and snooze are free: the attempt is refunded, the epoch is not.
                   attempt = j.attempt - CASE WHEN v_kinds[width_bucket(j.id, v_ids)] IN (3, 4) /* abandon, snooze */ THEN 1 ELSE 0 END,
                   owner = NULL, lease_until = NULL
             WHERE j.tenant_no = tenant_ AND j.id = ANY (v_ids) AND j.state + 0 = 1 /* running */
               AND (v_final IS NULL OR j.id <> ALL (v_final))
            RETURNING j.topic_no, j.state)
        INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
        SELECT tenant_, x.topic_no, 1 /* running */, x.state, count(*), v_now
          FROM (SELECT topic_no, state FROM kept UNION ALL SELECT topic_no, state FROM moved) AS x GROUP BY 2, 4;

        IF 6 /* dead */ = ANY (v_states) THEN
            RETURN QUERY SELECT NULL::int, NULL::smallint, NULL::smallint, NULL::timestamptz, 'capacity', d.topic_no
                           FROM headgate.dead_letter_v1(tenant_, v_final, v_now) AS d(topic_no);
        END IF;
        IF v_related IS NOT NULL AND headgate.ended_v1(tenant_, v_related, ARRAY(
               SELECT v_states[width_bucket(l.id, v_ids)] FROM unnest(v_related) WITH ORDINALITY AS l(id, n) ORDER BY l.n)) THEN
            RETURN QUERY SELECT NULL::int, NULL::smallint, NULL::smallint, NULL::timestamptz, 'unblock', NULL::int;
        END IF;
        IF v_limited IS NOT NULL THEN
            RETURN QUERY SELECT NULL::int, NULL::smallint, NULL::smallint, NULL::timestamptz, 'capacity', r.topic_no
                           FROM headgate.left_running_v1(tenant_, v_limited, v_now) AS r(topic_no);
        END IF;
        IF 0 /* pending */ = ANY (v_states) THEN PERFORM headgate.arrived_v1(tenant_, v_ids); END IF;
        IF v_final IS NOT NULL AND EXISTS (SELECT FROM headgate.webhooks w WHERE w.tenant_no = tenant_ AND w.enabled)
           AND headgate.webhook_ended_v1(tenant_, NULL, v_final, v_now) THEN
            RETURN QUERY SELECT NULL::int, NULL::smallint, NULL::smallint, NULL::timestamptz, 'webhook', NULL::int;
        END IF;
        RETURN QUERY SELECT d.n, 0 /* applied */::smallint, d.state, CASE WHEN d.state IN (2, 3) /* scheduled, retrying */ THEN d.run_at END,
                            NULL::text, NULL::int
                       FROM unnest(v_ords, v_states, v_run_ats) AS d(n, state, run_at);
    END IF;
    IF coalesce(cardinality(v_ids), 0) < cardinality(ids_) THEN
        -- An answer about what was committed before must be as durable as that: with synchronous replication, a commit whose
        -- session was lost can be seen here before a standby has it. This record makes our own commit wait for both.
        PERFORM pg_logical_emit_message(true, 'headgate', ''::text);
        RETURN QUERY
        SELECT m.n[r.ord], r.receipt, r.state, r.run_at, NULL::text, NULL::int
          FROM (SELECT array_agg(u.id ORDER BY u.n) AS ids, array_agg(u.epoch ORDER BY u.n) AS epochs,
                       array_agg(u.kind ORDER BY u.n) AS kinds, array_agg(u.n::int ORDER BY u.n) AS n
                  FROM unnest(ids_, epochs_, kinds_) WITH ORDINALITY AS u(id, epoch, kind, n)
                 WHERE u.n <> ALL (coalesce(v_ords, '{}'))) AS m
         CROSS JOIN LATERAL headgate.receipts_v1(tenant_, m.ids, m.epochs, m.kinds, 1) AS r;
    END IF;
END $$;
