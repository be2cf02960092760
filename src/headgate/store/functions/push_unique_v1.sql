-- A submit met a live job with its unique key and wants to change it: mode 1 replaces body, priority and due time, mode 2
-- pushes the due time. The caller's transaction holds the rows (add_dependencies_v1). A running job is left as it is. max_ms_ bounds
-- how long a job may be put off, from its creation.
-- call_ids_ are the ids of the submits: each is remembered, so that a copy of it does nothing more.
-- One by one, in the order given: of several submits in one flush, the last wins.
CREATE FUNCTION headgate.push_unique_v1(
    tenant_ int, ids_ uuid[], modes_ smallint[], max_ms_ bigint[], run_ats_ timestamptz[], delays_ms_ bigint[],
    payloads_ bytea[], priorities_ int[], call_ids_ uuid[])
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now   timestamptz := headgate.clock_v1();
    v_job   record;
    v_run   timestamptz;
    v_state smallint;
BEGIN
    -- Also for a job that runs and is left as it is: the same submit has the same answer.
    INSERT INTO headgate.unique_calls (tenant_no, id, job_id, expires_at)
    SELECT tenant_, u.call_id, u.id, v_now + interval '1 day' FROM unnest(call_ids_, ids_) AS u(call_id, id) ORDER BY 2
    ON CONFLICT (tenant_no, id) DO NOTHING;
    FOR i IN 1 .. cardinality(ids_) LOOP
        SELECT j.state, j.flags, j.created_at, j.topic_no, j.epoch, j.attempt, j.priority INTO v_job
          FROM headgate.jobs j WHERE j.tenant_no = tenant_ AND j.id = ids_[i];
        CONTINUE WHEN NOT FOUND OR v_job.state = 1 /* running */ OR modes_[i] = 0;
        v_run := coalesce(run_ats_[i], v_now + delays_ms_[i] * interval '1 ms', v_now);
        v_run := coalesce(least(v_run, v_job.created_at + max_ms_[i] * interval '1 ms'), v_run);
        IF v_job.flags & 4 /* limit_key */ <> 0 AND v_job.flags & 256 /* waits */ = 0
           AND v_job.state IN (0, 4) /* pending, blocked */ THEN
            v_run := NULL;            -- it waits in the line of its limit, or was admitted: it keeps its position and its time
        END IF;
        v_state := CASE WHEN v_job.state = 4 /* blocked */ OR v_run IS NULL THEN v_job.state
                        WHEN v_job.flags & 4 /* limit_key */ <> 0 AND v_job.state = 3 /* retrying */ AND modes_[i] = 2 THEN 3 /* retrying */
                        WHEN v_job.flags & 4 /* limit_key */ <> 0 THEN 2 /* scheduled; also if due: promotion puts it into its line */
                        WHEN v_run <= v_now THEN 0 /* pending */
                        WHEN v_job.state = 3 /* retrying */ AND modes_[i] = 2 THEN 3 /* retrying */
                        ELSE 2 /* scheduled */ END;
        IF v_state IN (2, 3) /* scheduled, retrying */ THEN
            v_run := greatest(v_run, v_now);      -- ticks look for due jobs from a floor on: a time long past lies below it
        END IF;
        IF modes_[i] = 1 THEN
            DELETE FROM headgate.payloads p WHERE p.tenant_no = tenant_ AND p.id = ids_[i];
            IF octet_length(payloads_[i]) > 1024 THEN
                INSERT INTO headgate.payloads (tenant_no, id, payload) VALUES (tenant_, ids_[i], payloads_[i]);
            END IF;
            UPDATE headgate.jobs j
               SET state = v_state, run_at = coalesce(v_run, j.run_at), attempt = 0,
                   -- Another body than the one it was submitted with; a repeat of that submit is still a repeat.
                   flags = (j.flags & ~1 /* payload_apart */) | 8 /* payload_edited */
                           | CASE WHEN octet_length(payloads_[i]) > 1024 THEN 1 /* payload_apart */ ELSE 0 END,
                   payload = CASE WHEN octet_length(payloads_[i]) <= 1024 THEN payloads_[i] END,
                   -- One that waits in the line of a limit keeps its position there.
                   (priority, rank_class, rank_at) = (
                       SELECT CASE WHEN j.flags & 4 /* limit_key */ <> 0 THEN j.priority ELSE n.priority END,
                              CASE WHEN j.flags & 4 /* limit_key */ <> 0 THEN j.rank_class
                                   WHEN t.ageing_step_us IS NULL THEN -1 - n.priority ELSE -1 END,
                              CASE WHEN j.flags & 4 /* limit_key */ <> 0 THEN j.rank_at
                                   ELSE j.rank_at + coalesce(j.priority * t.ageing_step_us, 0)
                                        - coalesce(n.priority * t.ageing_step_us, 0) END
                         FROM headgate.topics t, (SELECT coalesce(priorities_[i], 0) AS priority) AS n
                        WHERE t.topic_no = j.topic_no)
             WHERE j.tenant_no = tenant_ AND j.id = ids_[i];
        ELSE
            UPDATE headgate.jobs j SET state = v_state, run_at = coalesce(v_run, j.run_at) WHERE j.tenant_no = tenant_ AND j.id = ids_[i];
        END IF;
        IF v_state = 0 /* pending */ THEN PERFORM headgate.arrived_v1(tenant_, ARRAY[ids_[i]]); END IF;
        IF v_state <> v_job.state THEN
            INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
            VALUES (tenant_, v_job.topic_no, v_job.state, v_state, 1, v_now);
        END IF;
        INSERT INTO headgate.job_events (tenant_no, job_id, at, kind, epoch, attempt, state, run_at, reason, detail)
        VALUES (tenant_, ids_[i], v_now, 20 + modes_[i], v_job.epoch, v_job.attempt, v_state, v_run,
                CASE modes_[i] WHEN 1 THEN 'replaced by a submit with its unique key'
                               ELSE 'put off by a submit with its unique key' END,
                CASE modes_[i] WHEN 1 THEN jsonb_build_object('priority', v_job.priority, 'attempts', v_job.attempt) END);
    END LOOP;
END $$;
