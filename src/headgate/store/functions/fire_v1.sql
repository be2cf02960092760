-- Fires due schedules: in one transaction their cursors move, their jobs are made, and which job is for which occurrence is recorded. So there is
-- no moment at which a crash could leave a mark without its job, or a job without its mark.
--
-- A schedule is fired only if it is as the caller read it (version and next_at); what another instance has just fired,
-- or has been changed, is passed over. An occurrence that has its job already (the clock was set back, a backup was
-- restored) counts as fired and makes no second one: the key of schedule_jobs holds it.
--
-- A job for which its topic's backlog has no capacity is not made, and its schedule says what then (when_full). wait: the cursor
-- stays at the oldest occurrence without a job, and the schedule is looked at again after a while that grows from a second
-- to 15. So a full topic costs little and delays no other schedule; what comes due meanwhile is caught up by the schedule's own
-- policy. skip: the occurrence is counted as skipped. A schedule that replaces its earlier job must not lose that for
-- nothing: then the call fails with HG002, and the caller, who finds that schedule by halving, has it wait.
--
-- Per schedule: number, version, due (the next_at that was read), the next one (NULL: it has ended), an occurrence left out
-- for being late (or NULL). Per job: ord of its schedule, id, occurrence, and from where on it stands for others, too.
-- Returns the schedules that were fired: how many jobs, how many skipped, and whether the rest waits for capacity.
CREATE FUNCTION headgate.fire_v1(
    schedule_nos_ int[], versions_ int[], dues_ timestamptz[], nexts_ timestamptz[], missed_ timestamptz[],
    run_ords_ int[], run_ids_ uuid[], run_ats_ timestamptz[], run_froms_ timestamptz[])
RETURNS TABLE (schedule_no int, topic_no int, made int, skipped int, waits boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now      timestamptz := headgate.clock_v1();
    v_won      int[];
    v_busy     int[] := '{}';                            -- an earlier job of these is alive, and they skip
    v_open_nos      int[];                               -- jobs of theirs that may be alive, and whether they are
    v_open_tenants  int[];
    v_open_overlaps smallint[];
    v_open_jobs     uuid[];
    v_open_live     boolean[];
    v_over          tid[];                               -- those that are not
    v_over_jobs     uuid[];
    v_tenant   int;
    v_ids      uuid[];
    v_jobs     uuid[];
    v_nos      int[];
    v_ats      timestamptz[];
    v_tenants  int[];
    v_topics   int[];
    v_payloads bytea[];
    v_priorities int[];
    v_classes  int[];
    v_offsets  bigint[];
    v_attempts int[];
    v_policies int[];
    v_headers  jsonb[];
    v_tag_ords int[];
    v_tags     text[];
    v_refused  int[];                                    -- ords a limit of the topic did not let in
    v_replaced int[] := '{}';                            -- an earlier job of these was cancelled just now
BEGIN
    -- Compare and swap, on the newest version of each row; what another instance holds at this moment is its own.
    SELECT coalesce(array_agg(h.schedule_no), '{}') INTO v_won
      FROM (SELECT s.schedule_no, s.version, s.next_at, s.look_at FROM headgate.schedules s
             WHERE s.schedule_no = ANY (schedule_nos_) ORDER BY s.schedule_no FOR UPDATE SKIP LOCKED) AS h
      JOIN unnest(schedule_nos_, versions_, dues_) AS u(no, version, due)
        ON u.no = h.schedule_no AND u.version = h.version AND u.due = h.next_at
     WHERE h.look_at IS NOT NULL;
    IF cardinality(v_won) = 0 THEN RETURN; END IF;

    IF EXISTS (SELECT FROM headgate.schedules s WHERE s.schedule_no = ANY (v_won) AND s.overlap <> 0) THEN
        SELECT array_agg(o.schedule_no), array_agg(o.tenant_no), array_agg(o.overlap), array_agg(o.job_id),
               array_agg(o.live), array_agg(o.place) FILTER (WHERE NOT o.live),
               array_agg(o.job_id) FILTER (WHERE NOT o.live)
          INTO v_open_nos, v_open_tenants, v_open_overlaps, v_open_jobs, v_open_live, v_over, v_over_jobs
          FROM headgate.open_runs_v1(v_won) AS o;
        -- Close what has finished, so that it is not looked at again. By its place: by its key, a plan made while the table
        -- was small was seen to read all runs of the schedule. The id guards against another row in that place.
        UPDATE headgate.schedule_jobs l SET open_at = NULL WHERE l.ctid = ANY (v_over) AND l.job_id = ANY (v_over_jobs);
        SELECT coalesce(array_agg(DISTINCT u.no), '{}') INTO v_busy
          FROM unnest(v_open_nos, v_open_overlaps, v_open_live) AS u(no, overlap, live) WHERE u.live AND u.overlap = 1;
        FOR v_tenant, v_ids IN
            SELECT u.tenant_no, array_agg(u.id ORDER BY u.id)
              FROM unnest(v_open_nos, v_open_tenants, v_open_overlaps, v_open_jobs, v_open_live)
                   AS u(no, tenant_no, overlap, id, live)
             WHERE u.live AND u.overlap = 2 AND u.id <> ALL (run_ids_)      -- not the job of this very occurrence
               AND u.no = ANY (ARRAY(SELECT schedule_nos_[r.o] FROM unnest(run_ords_) AS r(o)))
             GROUP BY 1 ORDER BY 1
        LOOP
            PERFORM FROM headgate.cancel_v1(v_tenant, v_ids, 'scheduler', 'replaced by the next run of its schedule');
            v_replaced := v_replaced || ARRAY(
                SELECT u.no FROM unnest(v_open_nos, v_open_tenants, v_open_jobs) AS u(no, tenant_no, id)
                 WHERE u.tenant_no = v_tenant AND u.id = ANY (v_ids));
        END LOOP;
    END IF;

    WITH asked AS MATERIALIZED (
        SELECT s.tenant_no, s.schedule_no, r.id, r.at, r.covers_from
          FROM unnest(run_ords_, run_ids_, run_ats_, run_froms_) AS r(o, id, at, covers_from)
          JOIN headgate.schedules s ON s.schedule_no = schedule_nos_[r.o]
         WHERE s.schedule_no = ANY (v_won) AND s.schedule_no <> ALL (v_busy)),
    traced AS (
        INSERT INTO headgate.schedule_jobs (tenant_no, schedule_no, occurrence, job_id, covers_from, open_at)
        SELECT a.tenant_no, a.schedule_no, a.at, a.id, a.covers_from, a.at FROM asked a ORDER BY 1, 2, 3
        ON CONFLICT (tenant_no, schedule_no, occurrence) DO NOTHING
        RETURNING tenant_no, schedule_no, occurrence, job_id)
    SELECT array_agg(t.schedule_no ORDER BY t.occurrence, t.job_id), array_agg(t.job_id ORDER BY t.occurrence, t.job_id),
           array_agg(t.occurrence ORDER BY t.occurrence, t.job_id)
      INTO v_nos, v_jobs, v_ats FROM traced t;

    IF cardinality(v_jobs) > 0 THEN
        SELECT array_agg(s.tenant_no ORDER BY u.n), array_agg(s.topic_no ORDER BY u.n),
               array_agg(s.payload ORDER BY u.n), array_agg(p.priority ORDER BY u.n),
               array_agg(CASE WHEN t.ageing_step_us IS NULL THEN -1 - p.priority ELSE -1 END ORDER BY u.n),
               array_agg(-coalesce(p.priority * t.ageing_step_us, 0) ORDER BY u.n),
               array_agg(coalesce(s.max_attempts, t.max_attempts) ORDER BY u.n),
               array_agg(coalesce(s.policy_no, t.policy_no) ORDER BY u.n),
               array_agg(headgate.made_by_v1(s.headers, s.name, v_ats[u.n]) ORDER BY u.n)
          INTO v_tenants, v_topics, v_payloads, v_priorities, v_classes, v_offsets, v_attempts, v_policies, v_headers
          FROM unnest(v_nos) WITH ORDINALITY AS u(no, n)
          JOIN headgate.schedules s ON s.schedule_no = u.no
          JOIN headgate.topics t ON t.topic_no = s.topic_no
         CROSS JOIN LATERAL (SELECT coalesce(s.priority, t.priority, 0) AS priority) AS p;
        SELECT coalesce(array_agg(u.n::int), '{}'), coalesce(array_agg(g.tag), '{}') INTO v_tag_ords, v_tags
          FROM unnest(v_nos) WITH ORDINALITY AS u(no, n)
          JOIN headgate.schedules s ON s.schedule_no = u.no
         CROSS JOIN LATERAL unnest(s.tags) AS g(tag);
        -- Fresh: the row in schedule_jobs, new in this transaction, is the proof that no such job was ever made.
        SELECT coalesce(array_agg(x.ord) FILTER (WHERE x.receipt > 2), '{}') INTO v_refused
          FROM headgate.submit_v1(
               tenant_nos_ => v_tenants, ids_ => v_jobs, topic_nos_ => v_topics, payloads_ => v_payloads,
               priorities_ => v_priorities, rank_classes_ => v_classes, rank_offsets_ => v_offsets, delays_ms_ => '{}',
               run_ats_ => v_ats, max_attempts_ => v_attempts, policy_nos_ => v_policies, headers_ => v_headers,
               resent_ords_ => '{}', key_ords_ => '{}', keys_ => '{}', key_hashes_ => '{}', key_windows_ms_ => '{}',
               tag_ords_ => v_tag_ords, tags_ => v_tags, sized_ => false) AS x;
        FOR v_tenant, v_ids IN
            SELECT u.tenant_no, array_agg(u.id) FROM unnest(v_tenants, v_jobs) AS u(tenant_no, id) GROUP BY 1 ORDER BY 1
        LOOP
            UPDATE headgate.jobs j SET flags = j.flags | 64 /* from_schedule */
             WHERE j.tenant_no = v_tenant AND j.id = ANY (v_ids);
        END LOOP;
        IF cardinality(v_refused) > 0 THEN
            IF EXISTS (SELECT FROM unnest(v_refused) AS r(o) JOIN headgate.schedules s ON s.schedule_no = v_nos[r.o]
                        WHERE v_nos[r.o] = ANY (v_replaced)) THEN
                RAISE EXCEPTION 'the backlog of the topic is full' USING ERRCODE = 'HG002';
            END IF;
            DELETE FROM headgate.schedule_jobs j
             WHERE (j.tenant_no, j.schedule_no, j.occurrence)
                   IN (SELECT v_tenants[r.o], v_nos[r.o], v_ats[r.o] FROM unnest(v_refused) AS r(o));
        END IF;
    END IF;

    -- Counted before they are joined: looking through the jobs once per schedule would be quadratic.
    RETURN QUERY
    WITH jobs AS (
        SELECT m.no, count(*)::int AS made, (array_agg(m.id ORDER BY m.n DESC))[1] AS newest, max(m.at) AS newest_at
          FROM unnest(v_nos, v_jobs, v_ats) WITH ORDINALITY AS m(no, id, at, n)
         WHERE m.n <> ALL (coalesce(v_refused, '{}')) GROUP BY 1),
    refused AS (SELECT v_nos[r.o] AS no, count(*)::int AS n, min(v_ats[r.o]) AS first FROM unnest(v_refused) AS r(o) GROUP BY 1),
    asked AS (SELECT r.o, max(r.at) AS newest FROM unnest(run_ords_, run_ats_) AS r(o, at) GROUP BY 1),
    given AS MATERIALIZED (
        SELECT u.no, u.missed, coalesce(j.made, 0) AS made, j.newest,
               CASE WHEN w.waits THEN r.first ELSE u.next END AS next, w.waits,
               CASE WHEN w.waits THEN j.newest_at ELSE greatest(u.due, u.missed, a.newest) END AS handled,
               CASE WHEN u.no = ANY (v_busy) THEN 'overlap' WHEN u.missed IS NOT NULL THEN 'late'
                    WHEN r.n > 0 AND NOT w.waits THEN 'refused' END AS skip,
               (CASE WHEN u.no = ANY (v_busy) OR u.missed IS NOT NULL THEN 1 WHEN w.waits THEN 0
                     ELSE coalesce(r.n, 0) END) AS skipped
          FROM unnest(schedule_nos_, dues_, nexts_, missed_) WITH ORDINALITY AS u(no, due, next, missed, n)
          LEFT JOIN jobs j ON j.no = u.no
          LEFT JOIN refused r ON r.no = u.no
          LEFT JOIN asked a ON a.o = u.n
         CROSS JOIN LATERAL (SELECT coalesce(r.n > 0 AND s.when_full = 0 /* wait */, false) AS waits
                               FROM headgate.schedules s WHERE s.schedule_no = u.no) AS w
         WHERE u.no = ANY (v_won))
    UPDATE headgate.schedules s
       SET next_at = k.next,
           look_at = CASE WHEN k.waits THEN headgate.look_again_v1(coalesce(s.full_since, v_now), v_now) ELSE k.next END,
           full_since = CASE WHEN k.waits THEN coalesce(s.full_since, v_now) END, last_error = NULL, last_at = greatest(s.last_at, k.handled),
           last_job_id = coalesce(k.newest, s.last_job_id), fired = s.fired + k.made, skipped = s.skipped + k.skipped,
           last_skip = coalesce(k.skip, s.last_skip),
           last_skip_at = CASE WHEN k.skip IS NULL THEN s.last_skip_at ELSE k.handled END,
           skips_at = CASE WHEN k.skip IS NULL THEN s.skips_at ELSE (k.handled || s.skips_at)[:20] END,
           skips_why = CASE WHEN k.skip IS NULL THEN s.skips_why ELSE (k.skip || s.skips_why)[:20] END
      FROM given k
     WHERE s.schedule_no = k.no
    RETURNING s.schedule_no, s.topic_no, k.made, k.skipped, k.waits;
END $$;
