-- Cancels jobs of one tenant. Queued ones end at once; a running one is flagged, its worker is notified, and it ends with its
-- answer or its lease. Returns per ord: (found, state afterwards, changed). A finished job stays as it is.
CREATE FUNCTION headgate.cancel_v1(tenant_ int, ids_ uuid[], who_ text, reason_ text)
RETURNS TABLE (ord int, state smallint, changed boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_nestloop = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now     timestamptz := headgate.clock_v1();
    v_queued  uuid[];
    v_running uuid[];
    v_related  uuid[];          -- of the queued: others wait for it, or it has a unique key
    v_keyed   uuid[];
    v_pending uuid[];          -- those of them that their key had admitted
BEGIN
    SELECT array_agg(h.id) FILTER (WHERE h.state <> 1 /* running */),
           array_agg(h.id) FILTER (WHERE h.state = 1 /* running */ AND h.flags & 16 /* cancel_requested */ = 0),
           array_agg(h.id) FILTER (WHERE h.state <> 1 /* running */ AND h.flags & 2080 /* has_dependants | unique */ <> 0),
           array_agg(h.id) FILTER (WHERE h.state <> 1 /* running */ AND h.flags & 4 /* limit_key */ <> 0),
           array_agg(h.id) FILTER (WHERE h.state = 0 /* pending */ AND h.flags & 4 /* limit_key */ <> 0)
      INTO v_queued, v_running, v_related, v_keyed, v_pending
      FROM (SELECT j.id, j.state, j.flags FROM headgate.jobs j
             WHERE j.tenant_no = tenant_ AND j.id = ANY (ids_) ORDER BY j.id FOR UPDATE) AS h;
    WITH held AS MATERIALIZED (
        SELECT j.id, j.topic_no, j.state, j.epoch, j.attempt, j.claimed_at, j.worker FROM headgate.jobs j
         WHERE j.tenant_no = tenant_ AND j.id = ANY (v_queued || v_running)),
    given AS (
        INSERT INTO headgate.job_events (tenant_no, job_id, at, kind, epoch, attempt, state, claimed_at, worker, actor, reason)
        SELECT tenant_, h.id, v_now, CASE WHEN h.state = 1 /* running */ THEN 6 /* cancel_requested */ ELSE 7 /* cancelled */ END,
               h.epoch, h.attempt,
               CASE WHEN h.state = 1 /* running */ THEN 1 /* running */ ELSE 7 /* cancelled */ END, h.claimed_at, h.worker, who_, reason_
          FROM held h)
    INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
    SELECT tenant_, h.topic_no, h.state, 7 /* cancelled */, count(*), v_now
      FROM held h WHERE h.state <> 1 /* running */ GROUP BY 2, 3;
    WITH gone AS (
        DELETE FROM headgate.jobs j
         WHERE j.tenant_no = tenant_ AND j.id = ANY (v_queued)
        RETURNING j.id, j.created_at, j.run_at, j.claimed_at, j.topic_no, j.priority, j.attempt, j.max_attempts,
                  j.epoch, j.policy_no, j.owner, j.flags, j.last_outcome, j.worker, j.last_error, j.headers, j.progress,
                  j.payload)
    INSERT INTO headgate.archive (id, created_at, run_at, claimed_at, finished_at, tenant_no, topic_no, priority, attempt,
                                  max_attempts, epoch, policy_no, owner, state, flags, last_outcome, worker, last_error,
                                  headers, progress, payload)
    SELECT g.id, g.created_at, g.run_at, g.claimed_at, v_now, tenant_, g.topic_no, g.priority, g.attempt, g.max_attempts,
           g.epoch, g.policy_no, g.owner, 7, g.flags, g.last_outcome, g.worker, g.last_error, g.headers, g.progress,
           g.payload
      FROM gone g;
    IF v_related IS NOT NULL THEN
        PERFORM headgate.ended_v1(tenant_, v_related, array_fill(7 /* cancelled */::smallint, ARRAY[cardinality(v_related)]));
    END IF;
    IF v_queued IS NOT NULL AND EXISTS (SELECT FROM headgate.webhooks w WHERE w.tenant_no = tenant_ AND w.enabled) THEN
        PERFORM headgate.webhook_ended_v1(tenant_, NULL, v_queued, v_now);
    END IF;
    IF v_keyed IS NOT NULL THEN PERFORM headgate.left_line_v1(tenant_, v_keyed, v_pending, false); END IF;
    UPDATE headgate.jobs j SET flags = j.flags | 16 /* cancel_requested */ 
     WHERE j.tenant_no = tenant_ AND j.id = ANY (v_running);
    RETURN QUERY
    SELECT u.n::int, f.state, u.id = ANY (coalesce(v_queued, '{}')) OR u.id = ANY (coalesce(v_running, '{}'))
      FROM unnest(ids_) WITH ORDINALITY AS u(id, n)
      JOIN LATERAL (
           (SELECT j.state FROM headgate.jobs j WHERE j.tenant_no = tenant_ AND j.id = u.id LIMIT 1)
           UNION ALL
           (SELECT a.state FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id = u.id LIMIT 1)
           LIMIT 1) AS f ON true;
END $$;
