-- A new priority for queued jobs of one tenant; a running or finished one is refused. The place within the priority
-- stays: only the class changes (strict topics) or the bonus in the rank (ageing topics). Returns an ord for each found:
-- changed, or the state that stood in the way.
CREATE FUNCTION headgate.reprioritise_v1(tenant_ int, ids_ uuid[], priority_ int, who_ text, reason_ text)
RETURNS TABLE (ord int, changed boolean, state smallint, id uuid, topic_no int, rank_class int, rank_at bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now   timestamptz := headgate.clock_v1();
    v_ids   uuid[];
    v_keyed uuid[];
BEGIN
    SELECT array_agg(h.id) FILTER (WHERE h.state <> 1 /* running */),
           array_agg(h.id) FILTER (WHERE h.state = 4 /* blocked */ AND h.flags & 4 /* limit_key */ <> 0)
      INTO v_ids, v_keyed
      FROM (SELECT j.id, j.state, j.flags FROM headgate.jobs j WHERE j.tenant_no = tenant_ AND j.id = ANY (ids_)
             ORDER BY j.id FOR UPDATE) AS h;
    INSERT INTO headgate.job_events (tenant_no, job_id, at, kind, epoch, attempt, state, actor, reason, detail)
    SELECT tenant_, j.id, v_now, 9 /* reprioritised */, j.epoch, j.attempt, j.state, who_, reason_,
           jsonb_build_object('old', j.priority, 'new', priority_)
      FROM headgate.jobs j WHERE j.tenant_no = tenant_ AND j.id = ANY (v_ids);
    UPDATE headgate.jobs j
       SET priority = priority_,
           (rank_class, rank_at) = (
               SELECT CASE WHEN p.ageing_step_us IS NULL THEN -1 - priority_ ELSE -1 END,
                      -- The old bonus off, the new one on, in this order: their difference alone may not fit a bigint.
                      j.rank_at + coalesce(j.priority * p.ageing_step_us, 0) - coalesce(priority_ * p.ageing_step_us, 0)
                 FROM headgate.topics p WHERE p.topic_no = j.topic_no)
     WHERE j.tenant_no = tenant_ AND j.id = ANY (v_ids);
    PERFORM headgate.arrived_v1(tenant_, v_ids);
    IF v_keyed IS NOT NULL THEN PERFORM headgate.left_line_v1(tenant_, v_keyed, '{}', true); END IF;
    RETURN QUERY
    SELECT u.n::int, u.id = ANY (coalesce(v_ids, '{}')), f.state, u.id, f.topic_no, f.rank_class, f.rank_at
      FROM unnest(ids_) WITH ORDINALITY AS u(id, n)
      JOIN LATERAL (
           (SELECT j.state, j.topic_no, j.rank_class, j.rank_at FROM headgate.jobs j
             WHERE j.tenant_no = tenant_ AND j.id = u.id LIMIT 1)
           UNION ALL
           (SELECT a.state, a.topic_no, NULL, NULL FROM headgate.archive a
             WHERE a.tenant_no = tenant_ AND a.id = u.id LIMIT 1)
           LIMIT 1) AS f ON true;
END $$;
