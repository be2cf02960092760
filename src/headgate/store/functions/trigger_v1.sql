-- Makes one job of a schedule now, outside of its occurrences and whatever its overlap policy says. The id is derived from
-- the caller's request, so asking again makes no second one. Returns the receipt of the submit (0 created, 1 there already,
-- 3 refused by a limit of the topic); no row when there is no such schedule.
CREATE FUNCTION headgate.trigger_v1(tenant_ int, schedule_ int, id_ uuid)
RETURNS TABLE (topic_no int, receipt smallint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now     timestamptz := headgate.clock_v1();
    v_made    record;
    v_receipt smallint;
BEGIN
    -- The lock makes two calls with one request come one after the other.
    SELECT s.topic_no, s.payload, coalesce(s.priority, t.priority, 0) AS priority,
           headgate.made_by_v1(s.headers, s.name, v_now) AS headers, s.tags, t.ageing_step_us,
           coalesce(s.max_attempts, t.max_attempts) AS max_attempts, coalesce(s.policy_no, t.policy_no) AS policy_no
      INTO v_made FROM headgate.schedules s JOIN headgate.topics t ON t.topic_no = s.topic_no
     WHERE s.tenant_no = tenant_ AND s.schedule_no = schedule_ FOR UPDATE OF s;
    IF NOT FOUND THEN RETURN; END IF;
    IF EXISTS (SELECT FROM headgate.schedule_jobs j WHERE j.tenant_no = tenant_ AND j.job_id = id_) THEN
        RETURN QUERY SELECT v_made.topic_no, 1::smallint;
        RETURN;
    END IF;
    SELECT x.receipt INTO v_receipt FROM headgate.submit_v1(
        tenant_nos_ => ARRAY[tenant_], ids_ => ARRAY[id_], topic_nos_ => ARRAY[v_made.topic_no],
        payloads_ => ARRAY[v_made.payload], priorities_ => ARRAY[v_made.priority],
        rank_classes_ => ARRAY[CASE WHEN v_made.ageing_step_us IS NULL THEN -1 - v_made.priority ELSE -1 END],
        rank_offsets_ => ARRAY[-coalesce(v_made.priority * v_made.ageing_step_us, 0)], delays_ms_ => '{}',
        run_ats_ => '{}', max_attempts_ => ARRAY[v_made.max_attempts], policy_nos_ => ARRAY[v_made.policy_no],
        headers_ => ARRAY[v_made.headers], resent_ords_ => ARRAY[1], key_ords_ => '{}', keys_ => '{}', key_hashes_ => '{}',
        key_windows_ms_ => '{}', tag_ords_ => array_fill(1, ARRAY[cardinality(v_made.tags)]), tags_ => v_made.tags,
        sized_ => false) AS x;
    IF v_receipt IS NULL THEN
        UPDATE headgate.jobs j SET flags = j.flags | 64 /* from_schedule */ WHERE j.tenant_no = tenant_ AND j.id = id_;
        LOOP      -- the moment of the trigger is its occurrence; a microsecond later if that is taken
            INSERT INTO headgate.schedule_jobs (tenant_no, schedule_no, occurrence, job_id, open_at, triggered)
            VALUES (tenant_, schedule_, v_now, id_, v_now, true) ON CONFLICT DO NOTHING;
            EXIT WHEN FOUND;
            v_now := v_now + interval '1 microsecond';
        END LOOP;
        UPDATE headgate.schedules s SET last_job_id = id_, fired = s.fired + 1 WHERE s.schedule_no = schedule_;
    END IF;
    RETURN QUERY SELECT v_made.topic_no, coalesce(v_receipt, 0::smallint);
END $$;
