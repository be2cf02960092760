-- Puts finished jobs of one tenant back on their topic: attempts start anew, the rank is that of a job submitted now, the
-- epoch and the memory of the last outcome stay (an old worker's repeated answer is still recognised). payloads_, aligned
-- with ids_, may carry an edited body (NULL: as it was; an empty array: none is edited). Returns an ord for each done.
CREATE FUNCTION headgate.redrive_v1(
    tenant_ int, ids_ uuid[], payloads_ bytea[], delay_ms_ bigint, who_ text, reason_ text)
RETURNS TABLE (ord int, id uuid, topic_no int, rank_class int, rank_at bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now    timestamptz := headgate.clock_v1();
    v_now_us bigint := (extract(epoch FROM v_now) * 1000000)::bigint;
    v_ids    uuid[];
    v_run_at timestamptz := v_now + delay_ms_ * interval '1 ms';
    v_state  smallint := CASE WHEN delay_ms_ > 0 THEN 2 ELSE 0 END;
    v_keyed  uuid[];          -- due, with a limit key: into its key's line
BEGIN
    -- Locked first, in id order; of two redrives of one job the second finds nothing left.
    SELECT array_agg(l.id), coalesce(array_agg(l.id) FILTER (WHERE v_state = 0 AND l.flags & 4 <> 0), '{}') INTO v_ids, v_keyed
      FROM (SELECT a.id, a.flags FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id = ANY (ids_)
             ORDER BY a.id FOR UPDATE) AS l;
    IF v_ids IS NULL THEN RETURN; END IF;
    RETURN QUERY
    WITH told AS MATERIALIZED (
        SELECT u.id, u.payload, u.n::int AS n FROM unnest(ids_, payloads_) WITH ORDINALITY AS u(id, payload, n)),
    gone AS (
        DELETE FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id = ANY (v_ids)
        RETURNING a.id, a.created_at, a.topic_no, a.priority, a.max_attempts, a.epoch, a.policy_no, a.state, a.flags,
                  a.last_outcome, a.last_error, a.headers, a.payload, a.attempt),
    edited AS (
        INSERT INTO headgate.payloads (tenant_no, id, payload)
        SELECT tenant_, t.id, t.payload FROM told t JOIN gone g ON g.id = t.id WHERE octet_length(t.payload) > 1024
        ON CONFLICT (tenant_no, id) DO UPDATE SET payload = excluded.payload),
    made AS (
        INSERT INTO headgate.jobs AS j (id, rank_at, created_at, run_at, tenant_no, topic_no, rank_class, priority,
                                        max_attempts, epoch, policy_no, state, flags, last_outcome, last_error, headers,
                                        payload)
        SELECT g.id, v_now_us + t.n - coalesce(g.priority * p.ageing_step_us, 0), g.created_at, v_run_at, tenant_,
               g.topic_no, CASE WHEN p.ageing_step_us IS NULL THEN -1 - g.priority ELSE -1 END, g.priority,
               g.max_attempts, g.epoch, g.policy_no, CASE WHEN g.id = ANY (v_keyed) THEN 4 ELSE v_state END,
               CASE WHEN t.payload IS NULL THEN g.flags & ~16
                    WHEN octet_length(t.payload) > 1024 THEN (g.flags & ~16) | 1 | 8
                    ELSE (g.flags & ~17) | 8 END,
               g.last_outcome, g.last_error, g.headers,
               CASE WHEN t.payload IS NULL THEN g.payload WHEN octet_length(t.payload) <= 1024 THEN t.payload END
          FROM gone g JOIN told t ON t.id = g.id JOIN headgate.topics p ON p.topic_no = g.topic_no
        RETURNING j.id, j.topic_no, j.rank_class, j.rank_at),
    noted AS (
        INSERT INTO headgate.job_events (tenant_no, job_id, at, kind, epoch, attempt, state, run_at, actor, reason, detail)
        SELECT tenant_, g.id, v_now, 8, g.epoch, 0, CASE WHEN g.id = ANY (v_keyed) THEN 4 ELSE v_state END, v_run_at, who_, reason_,
               jsonb_build_object('from', g.state, 'attempts', g.attempt, 'edited', t.payload IS NOT NULL)
          FROM gone g JOIN told t ON t.id = g.id),
    counted AS (
        INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
        SELECT tenant_, g.topic_no, g.state, CASE WHEN g.id = ANY (v_keyed) THEN 4 ELSE v_state END, count(*), v_now
          FROM gone g GROUP BY 2, 3, 4)
    SELECT t.n, m.id, m.topic_no, m.rank_class, m.rank_at FROM made m JOIN told t ON t.id = m.id;
    IF cardinality(v_keyed) > 0 THEN PERFORM headgate.line_up_v1(tenant_, v_keyed); END IF;
    -- An edited body that is small again lives in the row; its old large copy is of no more use.
    IF cardinality(payloads_) > 0 THEN
        DELETE FROM headgate.payloads p USING unnest(ids_, payloads_) AS u(id, payload)
         WHERE p.tenant_no = tenant_ AND p.id = u.id AND octet_length(u.payload) <= 1024 AND u.id = ANY (v_ids);
    END IF;
END $$;
