-- Puts finished jobs of one tenant back on their topic: attempts start again from 0, the rank is that of a job submitted now, the
-- epoch and the memory of the last outcome stay (an old worker's repeated answer is still recognised). payloads_, aligned
-- with ids_, may carry an edited body (NULL: as it was; an empty array: none is edited). spread_us_ lies between the due
-- times of two neighbours, so that many do not come back all at once. A deadline that will have passed when the job is due
-- is dropped: it would end the job again. Returns an ord for each done.
CREATE FUNCTION headgate.redrive_v1(
    tenant_ int, ids_ uuid[], payloads_ bytea[], delay_ms_ bigint, who_ text, reason_ text, spread_us_ bigint DEFAULT 0)
RETURNS TABLE (ord int, id uuid, topic_no int, rank_class int, rank_at bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now    timestamptz := headgate.clock_v1();
    v_now_us bigint := (extract(epoch FROM v_now) * 1000000)::bigint;
    v_ids    uuid[];
    v_unique uuid[];
    v_refused uuid[];
    v_due    boolean := delay_ms_ <= 0;                                -- those that do not wait their spread
    v_run_at timestamptz := v_now + delay_ms_ * interval '1 ms';      -- of the first; a later one waits its spread longer
    v_keyed  uuid[];          -- due, with a limit key: into its key's line
    v_floor  bigint := (SELECT max(f.epoch) FROM headgate.epoch_floors f);
BEGIN
    -- Locked first, in id order; of two redrives of one job the second finds nothing left.
    SELECT array_agg(l.id), array_agg(l.id) FILTER (WHERE l.flags & 2048 /* unique */ <> 0),
           coalesce(array_agg(l.id) FILTER (WHERE v_due AND (spread_us_ <= 0 OR l.id = ids_[1])
              AND l.flags & 4 /* limit_key */ <> 0), '{}')
      INTO v_ids, v_unique, v_keyed
      FROM (SELECT a.id, a.flags FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id = ANY (ids_)
             ORDER BY a.id FOR UPDATE) AS l;
    IF v_ids IS NULL THEN RETURN; END IF;
    IF v_unique IS NOT NULL THEN      -- left out: those whose unique key another live job has
        v_refused := headgate.retake_unique_v1(tenant_, v_unique);
        v_ids := ARRAY(SELECT i FROM unnest(v_ids) AS i WHERE i <> ALL (v_refused));
        v_keyed := ARRAY(SELECT i FROM unnest(v_keyed) AS i WHERE i <> ALL (v_refused));
    END IF;
    RETURN QUERY
    WITH given AS MATERIALIZED (
        SELECT u.id, u.payload, u.n::int AS n, v_run_at + (u.n - 1) * spread_us_ * interval '1 us' AS run_at,
               (CASE WHEN delay_ms_ > 0 OR (u.n > 1 AND spread_us_ > 0) THEN 2 ELSE 0 END)::smallint AS state
          FROM unnest(ids_, payloads_) WITH ORDINALITY AS u(id, payload, n)),
    gone AS (
        DELETE FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id = ANY (v_ids)
        RETURNING a.id, a.created_at, a.topic_no, a.priority, a.max_attempts, a.epoch, a.policy_no, a.state, a.flags,
                  a.last_outcome, a.last_error, a.headers, a.payload, a.attempt),
    edited AS (
        INSERT INTO headgate.payloads (tenant_no, id, payload)
        SELECT tenant_, t.id, t.payload FROM given t JOIN gone g ON g.id = t.id WHERE octet_length(t.payload) > 1024
        ON CONFLICT (tenant_no, id) DO UPDATE SET payload = excluded.payload),
    made AS (
        INSERT INTO headgate.jobs AS j (id, rank_at, created_at, run_at, tenant_no, topic_no, rank_class, priority,
                                        max_attempts, epoch, policy_no, state, flags, last_outcome, last_error, headers,
                                        payload)
        SELECT g.id, v_now_us + t.n - coalesce(g.priority * p.ageing_step_us, 0), g.created_at, t.run_at, tenant_,
               g.topic_no, CASE WHEN p.ageing_step_us IS NULL THEN -1 - g.priority ELSE -1 END, g.priority,
               -- Epochs after this one may have been given out before the database was restored to an earlier state.
               g.max_attempts, greatest(g.epoch, v_floor), g.policy_no, CASE WHEN g.id = ANY (v_keyed) THEN 4 /* blocked */ ELSE t.state END,
               CASE WHEN t.payload IS NULL THEN g.flags & ~272 /* cancel_requested | waits */
                    WHEN octet_length(t.payload) > 1024 THEN (g.flags & ~272 /* cancel_requested | waits */) | 1 | 8
                    ELSE (g.flags & ~273 /* payload_apart | cancel_requested | waits */) | 8 END,
               g.last_outcome, g.last_error,
               CASE WHEN (g.headers ->> '.deadline_us')::bigint <= (extract(epoch FROM t.run_at) * 1000000)::bigint
                    THEN nullif(g.headers - '.deadline_us', '{}') ELSE g.headers END,
               CASE WHEN t.payload IS NULL THEN g.payload WHEN octet_length(t.payload) <= 1024 THEN t.payload END
          FROM gone g JOIN given t ON t.id = g.id JOIN headgate.topics p ON p.topic_no = g.topic_no
        RETURNING j.id, j.topic_no, j.rank_class, j.rank_at),
    noted AS (
        INSERT INTO headgate.job_events (tenant_no, job_id, at, kind, epoch, attempt, state, run_at, actor, reason, detail)
        SELECT tenant_, g.id, v_now, 8 /* redriven */, g.epoch, 0, CASE WHEN g.id = ANY (v_keyed) THEN 4 /* blocked */ ELSE t.state END, t.run_at, who_,
               reason_,
               jsonb_build_object('from', g.state, 'attempts', g.attempt, 'edited', t.payload IS NOT NULL)
          FROM gone g JOIN given t ON t.id = g.id),
    counted AS (
        INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
        SELECT tenant_, g.topic_no, g.state, CASE WHEN g.id = ANY (v_keyed) THEN 4 /* blocked */ ELSE t.state END, count(*), v_now
          FROM gone g JOIN given t ON t.id = g.id GROUP BY 2, 3, 4)
    SELECT t.n, m.id, m.topic_no, m.rank_class, m.rank_at FROM made m JOIN given t ON t.id = m.id;
    PERFORM headgate.arrived_v1(tenant_, v_ids);
    IF cardinality(v_keyed) > 0 THEN PERFORM headgate.line_up_v1(tenant_, v_keyed); END IF;
    -- An edited body that is small again lives in the row; its old large copy is of no more use.
    IF cardinality(payloads_) > 0 THEN
        DELETE FROM headgate.payloads p USING unnest(ids_, payloads_) AS u(id, payload)
         WHERE p.tenant_no = tenant_ AND p.id = u.id AND octet_length(u.payload) <= 1024 AND u.id = ANY (v_ids);
    END IF;
END $$;
