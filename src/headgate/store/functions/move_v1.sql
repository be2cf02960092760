-- Moves queued jobs of one tenant to another of its topics. Priority and age stay; the rank is what the target topic makes
-- of them, so a job that was submitted first is still before its peers there. Refused: running and finished jobs, blocked
-- ones, and those with a limit key or a unique key (which belong to the old topic). Returns an ord for each found: changed,
-- the state, and whether a key stood in the way.
CREATE FUNCTION headgate.move_v1(tenant_ int, ids_ uuid[], topic_ int, who_ text, reason_ text)
RETURNS TABLE (ord int, changed boolean, state smallint, keyed boolean, id uuid, topic_no int)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now   timestamptz := headgate.clock_v1();
    v_ids   uuid[];
    v_keyed uuid[];
    v_topic text;
    v_step  bigint;
BEGIN
    SELECT t.name, t.ageing_step_us INTO v_topic, v_step FROM headgate.topics t
     WHERE t.topic_no = topic_ AND t.tenant_no = tenant_;
    IF NOT FOUND THEN RETURN; END IF;
    SELECT array_agg(h.id) FILTER (WHERE h.state IN (0, 2, 3) /* pending, scheduled, retrying */
                                       AND h.flags & 2052 /* limit_key | unique */ = 0),
           array_agg(h.id) FILTER (WHERE h.flags & 2052 /* limit_key | unique */ <> 0)
      INTO v_ids, v_keyed
      FROM (SELECT j.id, j.state, j.flags FROM headgate.jobs j WHERE j.tenant_no = tenant_ AND j.id = ANY (ids_)
             ORDER BY j.id FOR UPDATE) AS h;
    WITH held AS MATERIALIZED (
        SELECT j.id, j.topic_no, j.state, j.epoch, j.attempt FROM headgate.jobs j
         WHERE j.tenant_no = tenant_ AND j.id = ANY (v_ids)),
    noted AS (
        INSERT INTO headgate.job_events (tenant_no, job_id, at, kind, epoch, attempt, state, actor, reason, detail)
        SELECT tenant_, h.id, v_now, 13 /* moved */, h.epoch, h.attempt, h.state, who_, reason_,
               jsonb_build_object('old', (SELECT o.name FROM headgate.topics o WHERE o.topic_no = h.topic_no), 'new', v_topic)
          FROM held h WHERE h.topic_no <> topic_)
    INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
    SELECT tenant_, c.topic_no, c.from_state, c.to_state, c.n, v_now
      FROM (SELECT h.topic_no, h.state AS from_state, -1::smallint AS to_state, count(*) AS n
              FROM held h WHERE h.topic_no <> topic_ GROUP BY 1, 2
             UNION ALL
            SELECT topic_, -1, h.state, count(*) FROM held h WHERE h.topic_no <> topic_ GROUP BY h.state) AS c;
    UPDATE headgate.jobs j
       SET topic_no = topic_,
           rank_class = CASE WHEN v_step IS NULL THEN -1 - j.priority ELSE -1 END,
           -- The old topic's bonus off, the new one's on, in this order: their difference alone may not fit a bigint.
           rank_at = j.rank_at + coalesce(j.priority * (SELECT o.ageing_step_us FROM headgate.topics o
                                                         WHERE o.topic_no = j.topic_no), 0)
                               - coalesce(j.priority * v_step, 0)
     WHERE j.tenant_no = tenant_ AND j.id = ANY (v_ids) AND j.topic_no + 0 <> topic_;
    PERFORM headgate.arrived_v1(tenant_, v_ids);
    RETURN QUERY
    SELECT u.n::int, u.id = ANY (coalesce(v_ids, '{}')), f.state, u.id = ANY (coalesce(v_keyed, '{}')), u.id, f.topic_no
      FROM unnest(ids_) WITH ORDINALITY AS u(id, n)
      JOIN LATERAL (
           (SELECT j.state, j.topic_no FROM headgate.jobs j WHERE j.tenant_no = tenant_ AND j.id = u.id LIMIT 1)
           UNION ALL
           (SELECT a.state, a.topic_no FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id = u.id LIMIT 1)
           LIMIT 1) AS f ON true;
END $$;
