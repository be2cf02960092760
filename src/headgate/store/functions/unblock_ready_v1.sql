-- Looks at up to n_ noted checks: a child whose parents have all done their part becomes claimable (or scheduled, or
-- stands in the line of its limit), one that can no longer be met is cancelled. Returns what is claimable now, and one row with
-- no id if there are more checks that can be decided now. Safe on every instance at once. A child that is locked is
-- noted once more, behind the others: it waits for that lock alone, and the next tick asks again.
--
-- In a transaction after the one that noted the check. Each statement below has a snapshot newer than the lock on the
-- child: of two that end the last two parents, whoever comes here second sees both.
CREATE FUNCTION headgate.unblock_ready_v1(n_ int) RETURNS TABLE (tenant_no int, topic_no int, id uuid)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now      timestamptz := headgate.clock_v1();
    v_tenants  int[];
    v_children uuid[];
    v_tenant   int;
    v_ids      uuid[];
    v_held     uuid[];
    v_decided  int := 0;       -- children that need no other look
    v_locked   int;
    v_free     uuid[];
    v_lined    uuid[];
    v_parent   uuid;
    v_met      smallint;
    v_end      record;
BEGIN
    -- Either a part of the children of one that has very many, or children that were noted: never both in one
    -- transaction, which would lock dependencies before jobs. By chance, so that neither waits for all of the other.
    IF EXISTS (SELECT FROM headgate.dependency_checks k WHERE k.parent_id IS NOT NULL)
       AND (random() < 0.5 OR NOT EXISTS (SELECT FROM headgate.dependency_checks k WHERE k.parent_id IS NULL)) THEN
        DELETE FROM headgate.dependency_checks c
         WHERE c.check_no = ANY (ARRAY(SELECT k.check_no FROM headgate.dependency_checks k WHERE k.parent_id IS NOT NULL
                                        ORDER BY k.check_no LIMIT 1 FOR UPDATE SKIP LOCKED))
        RETURNING c.tenant_no, c.parent_id, c.state, c.after_id INTO v_end;
        IF v_end.parent_id IS NOT NULL THEN
            v_ids := ARRAY(SELECT d.child_id FROM headgate.job_dependencies d
                            WHERE d.tenant_no = v_end.tenant_no AND d.parent_id = v_end.parent_id
                              AND d.child_id > coalesce(v_end.after_id, '00000000-0000-0000-0000-000000000000')
                            ORDER BY d.child_id LIMIT n_);
            PERFORM headgate.meet_v1(v_end.tenant_no, ARRAY[v_end.parent_id], ARRAY[v_end.state], v_ids);
            IF cardinality(v_ids) = n_ THEN
                INSERT INTO headgate.dependency_checks (tenant_no, parent_id, state, after_id)
                VALUES (v_end.tenant_no, v_end.parent_id, v_end.state, v_ids[n_]);
            END IF;
        END IF;
        RETURN QUERY SELECT NULL::int, NULL::int, NULL::uuid WHERE EXISTS (SELECT FROM headgate.dependency_checks);
        RETURN;
    END IF;
    WITH taken AS (
        DELETE FROM headgate.dependency_checks c
         WHERE c.check_no = ANY (ARRAY(SELECT k.check_no FROM headgate.dependency_checks k WHERE k.parent_id IS NULL
                                        ORDER BY k.check_no LIMIT n_ FOR UPDATE SKIP LOCKED))
        RETURNING c.tenant_no, c.child_id)
    SELECT array_agg(d.tenant_no), array_agg(d.child_id) INTO v_tenants, v_children
      FROM (SELECT DISTINCT t.tenant_no, t.child_id FROM taken t) AS d;
    IF v_tenants IS NULL THEN RETURN; END IF;
    FOR v_tenant, v_ids IN SELECT u.t, array_agg(u.c) FROM unnest(v_tenants, v_children) AS u(t, c) GROUP BY 1 ORDER BY 1 LOOP
        SELECT array_agg(l.id) INTO v_held
          FROM (SELECT j.id FROM headgate.jobs j
                 WHERE j.tenant_no = v_tenant AND j.id = ANY (v_ids) AND j.state + 0 = 4 AND j.flags & 256 <> 0
                 ORDER BY j.id FOR UPDATE SKIP LOCKED) AS l;
        -- Locked elsewhere: not forgotten, since the holder may have seen less than we would. A check that finds its child
        -- decided does no harm.
        INSERT INTO headgate.dependency_checks (tenant_no, child_id)
        SELECT v_tenant, j.id FROM headgate.jobs j
         WHERE j.tenant_no = v_tenant AND j.id = ANY (v_ids) AND j.state + 0 = 4 AND j.flags & 256 <> 0
           AND j.id <> ALL (coalesce(v_held, '{}'));
        GET DIAGNOSTICS v_locked = ROW_COUNT;
        v_decided := v_decided + cardinality(v_ids) - v_locked;
        CONTINUE WHEN v_held IS NULL;
        FOR v_parent, v_met, v_ids IN
            SELECT b.parent_id, b.met, array_agg(h.id)
              FROM unnest(v_held) AS h(id)
              JOIN LATERAL (SELECT d.parent_id, d.met FROM headgate.job_dependencies d   -- index: job_dependencies_unmet
                             WHERE d.tenant_no = v_tenant AND d.child_id = h.id AND d.met > 1 AND d.met <> 1
                             ORDER BY d.met LIMIT 1) AS b ON true
             GROUP BY 1, 2
        LOOP
            PERFORM headgate.cancel_v1(v_tenant, v_ids, '', 'it waited for ' || v_parent || ', which is '
                                       || CASE v_met WHEN 6 THEN 'dead' WHEN 7 THEN 'cancelled' ELSE 'gone' END);
        END LOOP;
        -- A later statement: what was cancelled just now is no more in jobs.
        SELECT array_agg(j.id), array_agg(j.id) FILTER (WHERE j.flags & 4 <> 0 AND j.run_at <= v_now) INTO v_free, v_lined
          FROM headgate.jobs j
         WHERE j.tenant_no = v_tenant AND j.id = ANY (v_held) AND j.state + 0 = 4
           AND NOT EXISTS (SELECT FROM headgate.job_dependencies d                       -- index: job_dependencies_unmet
                            WHERE d.tenant_no = v_tenant AND d.child_id = j.id AND d.met <> 1);
        CONTINUE WHEN v_free IS NULL;
        WITH moved AS (
            UPDATE headgate.jobs j
               SET flags = j.flags & ~256,
                   state = CASE WHEN j.run_at > v_now THEN 2 WHEN j.flags & 4 <> 0 THEN 4 ELSE 0 END
             WHERE j.tenant_no = v_tenant AND j.id = ANY (v_free)
            RETURNING j.id, j.topic_no, j.state, j.epoch, j.attempt, j.run_at),
        noted AS (
            INSERT INTO headgate.job_events (tenant_no, job_id, at, kind, epoch, attempt, state, run_at, reason)
            SELECT v_tenant, m.id, v_now, 12, m.epoch, m.attempt, m.state, CASE WHEN m.state = 2 THEN m.run_at END,
                   'all it waited for has been done' FROM moved m)
        INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
        SELECT v_tenant, m.topic_no, 4, m.state, count(*), v_now FROM moved m WHERE m.state <> 4 GROUP BY 2, 4;
        PERFORM headgate.arrived_v1(v_tenant, v_free);
        IF v_lined IS NOT NULL THEN PERFORM headgate.line_up_v1(v_tenant, v_lined); END IF;
        RETURN QUERY SELECT v_tenant, j.topic_no, j.id FROM headgate.jobs j
                      WHERE j.tenant_no = v_tenant AND j.id = ANY (v_free) AND j.state + 0 = 0;
    END LOOP;
    -- Also when what was cancelled here has children of its own. Not when all that we took is locked.
    RETURN QUERY SELECT NULL::int, NULL::int, NULL::uuid
                  WHERE v_decided > 0 AND EXISTS (SELECT FROM headgate.dependency_checks);
END $$;

-- The last net: looks at up to n_ unmet dependencies behind the given one in key order, and mends what no end of a parent
-- should have left behind: a parent that has ended or is gone, with a child that still waits for it; a broken dependency whose
-- child still waits. Returns where to go on (from the beginning after the last one), and what was mended.
--
-- One snapshot for each look: whatever ends a parent writes the dependency in the same transaction. So only what is really
-- wrong is found, and nothing is locked unless there is something to mend.
CREATE FUNCTION headgate.mend_waits_v1(tenant_ int, child_ uuid, met_ smallint, parent_ uuid, n_ int)
RETURNS TABLE (tenant_no int, child_id uuid, met smallint, parent_id uuid, mended text[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_one    record;
    v_last   record;
    v_n      int := 0;
    v_mended text[] := '{}';
BEGIN
    FOR v_one IN
        SELECT e.tenant_no, e.child_id, e.met, e.parent_id, e.ended,
               CASE WHEN e.ended = 0
                      OR (e.ended IN (6, 7) AND e.needs = 0 AND e.on_failure = 2)    -- it waits on: for a redrive
                      OR NOT EXISTS (SELECT FROM headgate.jobs j WHERE j.tenant_no = e.tenant_no AND j.id = e.child_id
                                        AND j.state + 0 = 4 AND j.flags & 256 <> 0) THEN false
                    -- Noted: the child itself, or the end of a parent that has very many.
                    ELSE NOT EXISTS (SELECT FROM headgate.dependency_checks k
                                      WHERE k.tenant_no = e.tenant_no
                                        AND (k.child_id = e.child_id OR k.parent_id = e.parent_id)) END AS wrong
          FROM (SELECT d.tenant_no, d.child_id, d.met, d.parent_id, d.needs, d.on_failure,
                       CASE WHEN d.met > 1 THEN d.met
                            WHEN EXISTS (SELECT FROM headgate.jobs j
                                          WHERE j.tenant_no = d.tenant_no AND j.id = d.parent_id) THEN 0
                            ELSE coalesce((SELECT CASE WHEN b.sealed_at IS NULL THEN 0 WHEN b.expired THEN 8 ELSE 5 END
                                             FROM headgate.batches b
                                            WHERE b.tenant_no = d.tenant_no AND b.id = d.parent_id),
                                          (SELECT a.state FROM headgate.archive a
                                            WHERE a.tenant_no = d.tenant_no AND a.id = d.parent_id LIMIT 1), 8) END AS ended
                  FROM headgate.job_dependencies d                                        -- index: job_dependencies_unmet
                 WHERE d.met <> 1 AND (d.tenant_no, d.child_id, d.met, d.parent_id) > (tenant_, child_, met_, parent_)
                 ORDER BY d.tenant_no, d.child_id, d.met, d.parent_id LIMIT n_) AS e
    LOOP
        v_n := v_n + 1;
        v_last := v_one;
        CONTINUE WHEN NOT v_one.wrong;
        v_mended := v_mended || format('%s waited for %s (%s)', v_one.child_id, v_one.parent_id, v_one.ended);
        IF v_one.met > 1 THEN
            INSERT INTO headgate.dependency_checks (tenant_no, child_id) VALUES (v_one.tenant_no, v_one.child_id);
        ELSE
            PERFORM headgate.meet_v1(v_one.tenant_no, ARRAY[v_one.parent_id], ARRAY[v_one.ended::smallint], ARRAY[v_one.child_id]);
        END IF;
    END LOOP;
    IF v_n = n_ THEN
        RETURN QUERY SELECT v_last.tenant_no, v_last.child_id, v_last.met, v_last.parent_id, v_mended;
    ELSE
        RETURN QUERY SELECT 0, '00000000-0000-0000-0000-000000000000'::uuid, 0::smallint,
                            '00000000-0000-0000-0000-000000000000'::uuid, v_mended;
    END IF;
END $$;
