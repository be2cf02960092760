-- One flush of outcomes, any mix. Returns only what needs telling: (ord, receipt, state, run_at). A Completed that was
-- applied gives no row; every other outcome gives one (0 applied, with what became of the job; 1 duplicate; 2 stale;
-- 3 unknown). ords count the completed ones first, then the others, in the order given. A row with a note concerns no
-- outcome: 'unblock', jobs that waited for some of these may be claimable, see unblock_ready_v1; 'capacity', the topic
-- topic_no may start more jobs, or has new pending ones, since something ended; 'webhook', there is something to deliver.
--
-- tenants_/counts_ cut the arrays into runs, one per tenant, ascending: nearly always one. Repeated ids were folded by the
-- caller. A row that another transaction has locked is waited for, lock_ms_ at the most (0: as long as the session says); then
-- the call fails, and settle_unlocked_v1 settles what can be settled without it.
CREATE FUNCTION headgate.settle_v1(
    tenants_ int[], counts_ int[], ids_ uuid[], epochs_ bigint[], results_ bytea[],
    other_tenants_ int[], other_counts_ int[], other_ids_ uuid[], other_epochs_ bigint[], other_kinds_ smallint[],
    other_delays_ms_ bigint[], other_permanents_ boolean[], other_reasons_ text[],
    error_types_ text[], error_messages_ text[], error_traces_ text[], lock_ms_ int DEFAULT 0)
RETURNS TABLE (ord int, receipt smallint, state smallint, run_at timestamptz, note text, topic_no int)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_nestloop = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now     timestamptz := headgate.clock_v1();   -- one stamp: a flush never straddles two partitions
    v_from    int := 1;
    v_to      int;
    v_ids     uuid[] := ids_;
    v_epochs  bigint[] := epochs_;
    v_results bytea[] := results_;
    v_applied int;
    v_gone    uuid[];
    v_base    int := cardinality(ids_);
    v_cancelled     uuid[];          -- completed although a cancel was requested
    v_related  uuid[];          -- others wait for it, or it has a unique key
    v_limited uuid[];          -- counted against a limit, of their topic or their key
    v_topics  int[];           -- of those that completed, if the tenant has webhooks
BEGIN
    IF lock_ms_ > 0 THEN PERFORM set_config('lock_timeout', lock_ms_::text, true); END IF;
    -- Completions are written first, each part in id order; both parts together are not, so their locks are taken before.
    IF cardinality(ids_) > 0 AND cardinality(other_ids_) > 0 THEN
        PERFORM headgate.lock_jobs_v1(tenants_ || other_tenants_, counts_ || other_counts_, ids_ || other_ids_);
    ELSIF cardinality(tenants_) > 1 OR cardinality(other_tenants_) > 1 THEN
        -- Several tenants: if limits are in use, what each of them frees must be locked behind all the jobs.
        IF EXISTS (SELECT FROM headgate.limit_usage) THEN
            PERFORM headgate.lock_jobs_v1(tenants_ || other_tenants_, counts_ || other_counts_, ids_ || other_ids_);
        END IF;
    END IF;
    FOR v_run IN 1 .. cardinality(tenants_) LOOP
        -- An empty constant list implies any predicate, so the planner may take any partial index and read all of it: while
        -- an old snapshot is held, that is all that ran since.
        CONTINUE WHEN counts_[v_run] = 0;
        v_to := v_from + counts_[v_run] - 1;
        IF cardinality(tenants_) > 1 THEN
            v_ids := ids_[v_from:v_to];
            v_epochs := epochs_[v_from:v_to];
            v_results := results_[v_from:v_to];
        END IF;
        -- explain: complete
        WITH given AS MATERIALIZED (
            SELECT u.id, u.epoch, u.result FROM unnest(v_ids, v_epochs, v_results) AS u(id, epoch, result)),
        gone AS (
            -- By key; state and epoch are checked on the row, through a hashed list. IS TRUE keeps the planner from
            -- turning that list into a join. The newest version of the row is what counts: a renewal that commits
            -- meanwhile is waited for and the checks are made again.
            DELETE FROM headgate.jobs j
             WHERE j.tenant_no = tenants_[v_run] AND j.id = ANY (v_ids) AND j.state + 0 = 1 /* running */
               AND ((j.id, j.epoch) IN (SELECT t.id, t.epoch FROM given t)) IS TRUE
            RETURNING j.id, j.created_at, j.run_at, j.claimed_at, j.topic_no, j.priority, j.attempt, j.max_attempts,
                      j.epoch, j.policy_no, j.owner, j.flags, j.worker, j.last_error, j.headers, j.progress, j.payload),
        counted AS (
            INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
            SELECT tenants_[v_run], g.topic_no, 1 /* running */, 5 /* completed */, count(*), v_now FROM gone g GROUP BY 2
            RETURNING topic_no),
        kept AS (
            INSERT INTO headgate.archive (id, created_at, run_at, claimed_at, finished_at, tenant_no, topic_no, priority,
                                          attempt, max_attempts, epoch, policy_no, owner, state, flags, last_outcome,
                                          worker, last_error, headers, progress, payload, result)
            SELECT g.id, g.created_at, g.run_at, g.claimed_at, v_now, tenants_[v_run], g.topic_no, g.priority, g.attempt,
                   g.max_attempts, g.epoch, g.policy_no, g.owner, 5 /* completed */, g.flags, 0 /* completed */, g.worker, g.last_error, g.headers,
                   g.progress, g.payload, t.result
              FROM gone g JOIN given t ON t.id = g.id
            RETURNING id, flags)
        SELECT count(*), array_agg(k.id) FILTER (WHERE k.flags & 16 /* cancel_requested */ <> 0),
               array_agg(k.id) FILTER (WHERE k.flags & 2080 /* has_dependants | unique */ <> 0),
                      array_agg(k.id) FILTER (WHERE k.flags & 132 /* limit_key | counted */ <> 0),
               CASE WHEN count(*) < cardinality(v_ids) THEN array_agg(k.id) END,
               -- Once a flush, whatever the number of jobs: a tenant without webhooks costs one look into an index, and one
               -- whose webhooks are about other events that and their rows.
               CASE WHEN EXISTS (SELECT FROM headgate.webhooks w
                                  WHERE w.tenant_no = tenants_[v_run] AND w.enabled AND w.events & 1 /* job.completed */ <> 0)
                    THEN (SELECT array_agg(c.topic_no) FROM counted c) END
          INTO v_applied, v_cancelled, v_related, v_limited, v_gone, v_topics FROM kept k;
        -- explain: end
        IF v_limited IS NOT NULL THEN
            RETURN QUERY SELECT NULL::int, NULL::smallint, NULL::smallint, NULL::timestamptz, 'capacity', r.topic_no
                           FROM headgate.left_running_v1(tenants_[v_run], v_limited, v_now) AS r(topic_no);
        END IF;
        IF v_cancelled IS NOT NULL THEN      -- completed before the cancel request arrived: the result counts, and the history shows it
            INSERT INTO headgate.job_events (tenant_no, job_id, at, kind, epoch, attempt, state, claimed_at, worker)
            SELECT a.tenant_no, a.id, v_now, 10 /* completed_after_cancel */, a.epoch, a.attempt, 5 /* completed */, a.claimed_at,
                   a.worker FROM headgate.archive a
             WHERE a.tenant_no = tenants_[v_run] AND a.id = ANY (v_cancelled) AND a.finished_at = v_now;
        END IF;
        IF v_related IS NOT NULL
           AND headgate.ended_v1(tenants_[v_run], v_related, array_fill(5 /* completed */::smallint, ARRAY[cardinality(v_related)])) THEN
            RETURN QUERY SELECT NULL::int, NULL::smallint, NULL::smallint, NULL::timestamptz, 'unblock', NULL::int;
        END IF;
        IF v_topics IS NOT NULL AND headgate.webhook_ended_v1(tenants_[v_run], v_topics, v_ids, v_now) THEN
            RETURN QUERY SELECT NULL::int, NULL::smallint, NULL::smallint, NULL::timestamptz, 'webhook', NULL::int;
        END IF;
        IF v_applied < cardinality(v_ids) THEN
            -- An answer about what was committed before must be as durable as that: with synchronous replication, a commit whose
            -- session was lost can be seen here before a standby has it. This record makes our own commit wait for both.
            PERFORM pg_logical_emit_message(true, 'headgate', ''::text);
            RETURN QUERY
            SELECT v_from + m.n[r.ord] - 1, r.receipt, r.state, r.run_at, NULL::text, NULL::int
              FROM (SELECT array_agg(u.id ORDER BY u.n) AS ids, array_agg(u.epoch ORDER BY u.n) AS epochs,
                           array_agg(u.n::int ORDER BY u.n) AS n
                      FROM unnest(v_ids, v_epochs) WITH ORDINALITY AS u(id, epoch, n)
                     WHERE u.id <> ALL (coalesce(v_gone, '{}'))) AS m
             CROSS JOIN LATERAL headgate.receipts_v1(tenants_[v_run], m.ids, m.epochs,
                                                     array_fill(0 /* completed */::smallint, ARRAY[cardinality(m.ids)]), 1) AS r;
        END IF;
        v_from := v_to + 1;
    END LOOP;

    v_from := 1;
    FOR v_run IN 1 .. cardinality(other_tenants_) LOOP
        v_to := v_from + other_counts_[v_run] - 1;
        RETURN QUERY
        SELECT o.ord + v_base + v_from - 1, o.receipt, o.state, o.run_at, o.note, o.topic_no
          FROM headgate.settle_other_v1(
                   other_tenants_[v_run], other_ids_[v_from:v_to], other_epochs_[v_from:v_to], other_kinds_[v_from:v_to],
                   other_delays_ms_[v_from:v_to], other_permanents_[v_from:v_to], other_reasons_[v_from:v_to],
                   error_types_[v_from:v_to], error_messages_[v_from:v_to], error_traces_[v_from:v_to]) AS o;
        v_from := v_to + 1;
    END LOOP;
END $$;
