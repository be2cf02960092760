-- Jobs of one tenant that have just died (they are in the archive since now_) are also submitted to the dead-letter topic of
-- their topic, if it has one. In the transaction of their death: so once for each death, whatever fails. A copy that dies is
-- not copied again, whichever topics name each other: no job is copied in a cycle. A limit on the backlog of the dead-letter
-- topic does not count here, for the dead job must not get lost, and its end must not fail.
--
-- The copy has the payload and the headers of the job, and headers that say where it comes from. What the rules of the
-- dead-letter topic do not say is as submit_v1 has it. Returns the topics that have new jobs.
CREATE FUNCTION headgate.dead_letter_v1(tenant_ int, ids_ uuid[], now_ timestamptz) RETURNS SETOF int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on SET jit = off AS $$
DECLARE
    v_dead  uuid[];
    v_found record;
BEGIN
    IF NOT EXISTS (SELECT FROM headgate.topics t WHERE t.dead_letter_no IS NOT NULL) THEN      -- index: topics_dead_letter
        RETURN;
    END IF;
    -- Two statements: what is large is read only of jobs that are copied.
    SELECT array_agg(a.id) INTO v_dead
      FROM headgate.archive a JOIN headgate.topics t ON t.topic_no = a.topic_no
     WHERE a.tenant_no = tenant_ AND a.id = ANY (ids_) AND a.finished_at = now_ AND a.state = 6 /* dead */
       AND t.dead_letter_no IS NOT NULL AND (a.headers ? '.dead_letter_of') IS NOT TRUE;
    IF v_dead IS NULL THEN RETURN; END IF;
    SELECT array_agg(d.new_id) AS ids, array_agg(d.topic_no) AS topics, array_agg(d.payload) AS payloads,
           array_agg(d.priority) AS priorities,
           array_agg(CASE WHEN d.ageing_step_us IS NULL THEN -1 - d.priority ELSE -1 END) AS classes,
           array_agg(-coalesce(d.priority * d.ageing_step_us, 0)) AS offsets,
           array_agg(d.max_attempts) AS attempts, array_agg(d.policy_no) AS policies, array_agg(d.headers) AS headers
      INTO v_found
      FROM (SELECT -- a UUIDv7, as submit_returning makes them
                   encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) PLACING
                       substring(int8send((extract(epoch FROM now_) * 1000)::bigint) FROM 3) FROM 1 FOR 6),
                       52, 1), 53, 1), 'hex')::uuid AS new_id,
                   q.topic_no, coalesce(q.priority, a.priority) AS priority,
                   coalesce(a.payload, p.payload, '') AS payload,      -- lost (dispatch/deadlines.py): the error names it
                   q.ageing_step_us, q.max_attempts, q.policy_no,
                   coalesce(a.headers, '{}') - ARRAY['.deadline_us', '.schedule', '.occurrence_us', '.unchecked'] || jsonb_build_object(
                       '.dead_letter_of', a.id::text,
                       'headgate-dead-job', a.id::text,
                       'headgate-dead-topic', t.name,
                       'headgate-dead-attempts', a.attempt::text,
                       'headgate-dead-error', regexp_replace(left(coalesce(a.last_error, ''), 500), '[[:cntrl:]]+', ' ', 'g'))
                   AS headers
              FROM headgate.archive a
              JOIN headgate.topics t ON t.topic_no = a.topic_no
              JOIN headgate.topics q ON q.topic_no = t.dead_letter_no
              LEFT JOIN headgate.payloads p ON p.tenant_no = a.tenant_no AND p.id = a.id AND a.flags & 1 /* payload_apart */ <> 0
             WHERE a.tenant_no = tenant_ AND a.id = ANY (v_dead) AND a.finished_at = now_
             ORDER BY a.id) AS d;
    PERFORM FROM headgate.submit_v1(
        tenant_nos_ => array_fill(tenant_, ARRAY[cardinality(v_found.ids)]), ids_ => v_found.ids,
        topic_nos_ => v_found.topics, payloads_ => v_found.payloads, priorities_ => v_found.priorities,
        rank_classes_ => v_found.classes, rank_offsets_ => v_found.offsets, delays_ms_ => '{}', run_ats_ => '{}',
        max_attempts_ => v_found.attempts, policy_nos_ => v_found.policies, headers_ => v_found.headers,
        resent_ords_ => '{}', key_ords_ => '{}', keys_ => '{}', key_hashes_ => '{}', key_windows_ms_ => '{}',
        tag_ords_ => '{}', tags_ => '{}', bounded_ => false);
    RETURN QUERY SELECT DISTINCT n FROM unnest(v_found.topics) AS n;
END $$;
