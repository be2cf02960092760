-- Removes dead or cancelled jobs of one tenant for good, with what hangs on them; the events stay and say who did it.
-- Returns the ords removed.
CREATE FUNCTION headgate.discard_v1(tenant_ int, ids_ uuid[], who_ text, reason_ text) RETURNS TABLE (ord int)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := headgate.clock_v1();
    v_ids uuid[];
    v_related uuid[];           -- rows in other tables connect it with jobs, a batch or a key
BEGIN
    -- Locked first, in id order, as a redrive does: a DELETE comes to its rows day by day.
    SELECT array_agg(l.id) INTO v_ids
      FROM (SELECT a.id FROM headgate.archive a
             WHERE a.tenant_no = tenant_ AND a.id = ANY (ids_) AND a.state + 0 IN (6, 7) /* dead, cancelled */
             ORDER BY a.id FOR UPDATE) AS l;
    WITH gone AS (
        DELETE FROM headgate.archive a
         WHERE a.tenant_no = tenant_ AND a.id = ANY (v_ids) AND a.state + 0 IN (6, 7) /* dead, cancelled */
        RETURNING a.id, a.topic_no, a.state, a.epoch, a.attempt, a.flags),
    noted AS (
        INSERT INTO headgate.job_events (tenant_no, job_id, at, kind, epoch, attempt, state, actor, reason)
        SELECT tenant_, g.id, v_now, 11 /* discarded */, g.epoch, g.attempt, g.state, who_, reason_ FROM gone g),
    counted AS (
        INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
        SELECT tenant_, g.topic_no, g.state, -1 /* none */, count(*), v_now FROM gone g GROUP BY 2, 3)
    SELECT array_agg(g.id),
           array_agg(g.id) FILTER (WHERE g.flags & 3616 /* has_dependants | has_parents | in_batch | unique */ <> 0)
      INTO v_ids, v_related FROM gone g;
    IF v_related IS NOT NULL THEN      -- children that wait for a redrive of these would wait forever
        PERFORM headgate.ended_v1(tenant_, v_related, array_fill(8 /* gone */::smallint, ARRAY[cardinality(v_related)]));
        DELETE FROM headgate.unique_jobs q WHERE q.tenant_no = tenant_ AND q.job_id = ANY (v_related);
        DELETE FROM headgate.job_dependencies d WHERE d.tenant_no = tenant_ AND d.child_id = ANY (v_related);
        DELETE FROM headgate.batch_jobs m WHERE m.tenant_no = tenant_ AND m.job_id = ANY (v_related);
    END IF;
    DELETE FROM headgate.payloads p WHERE p.tenant_no = tenant_ AND p.id = ANY (v_ids);
    DELETE FROM headgate.job_limit_keys k WHERE k.tenant_no = tenant_ AND k.job_id = ANY (v_ids);
    DELETE FROM headgate.job_tags t WHERE t.tenant_no = tenant_ AND t.job_id = ANY (v_ids);
    DELETE FROM headgate.schedule_jobs l WHERE l.tenant_no = tenant_ AND l.job_id = ANY (v_ids);
    DELETE FROM headgate.job_logs g WHERE g.tenant_no = tenant_ AND g.job_id = ANY (v_ids);
    RETURN QUERY SELECT u.n::int FROM unnest(ids_) WITH ORDINALITY AS u(id, n) WHERE u.id = ANY (v_ids);
END $$;
