-- Looks at up to n_ noted checks: a child whose parents have all done their part becomes claimable (or scheduled, or
-- waits in the line of its limit), one that can no longer be met is cancelled. Returns what is claimable now, and one row
-- with `more` if there are more checks that can be decided now. Safe on every instance at once. A child that is locked is
-- noted once more, behind the others: it waits for that lock alone, and the next tick asks again.
--
-- In a transaction after the one that noted the check. Each statement below has a snapshot newer than the lock on the
-- child: of two that end the last two parents, the second to come here sees both.
CREATE FUNCTION headgate.unblock_ready_v1(n_ int) RETURNS TABLE (tenant_no int, topic_no int, id uuid, more boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now      timestamptz;
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
        RETURN QUERY SELECT NULL::int, NULL::int, NULL::uuid, true WHERE EXISTS (SELECT FROM headgate.dependency_checks);
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
                 WHERE j.tenant_no = v_tenant AND j.id = ANY (v_ids) AND j.state + 0 = 4 /* blocked */
                    AND j.flags & 256 /* waits */ <> 0
                 ORDER BY j.id FOR UPDATE SKIP LOCKED) AS l;
        -- Locked elsewhere: not forgotten, since the holder may have seen less than we would. A check that finds its child
        -- decided does no harm.
        INSERT INTO headgate.dependency_checks (tenant_no, child_id)
        SELECT v_tenant, j.id FROM headgate.jobs j
         WHERE j.tenant_no = v_tenant AND j.id = ANY (v_ids) AND j.state + 0 = 4 /* blocked */
            AND j.flags & 256 /* waits */ <> 0
           AND j.id <> ALL (coalesce(v_held, '{}'));
        GET DIAGNOSTICS v_locked = ROW_COUNT;
        v_decided := v_decided + cardinality(v_ids) - v_locked;
        CONTINUE WHEN v_held IS NULL;
        v_now := headgate.clock_v1();    -- behind the locks: a child may have been submitted since this call began
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
        SELECT array_agg(j.id), array_agg(j.id) FILTER (WHERE j.flags & 4 /* limit_key */ <> 0 AND j.run_at <= v_now)
           INTO v_free, v_lined
          FROM headgate.jobs j
         WHERE j.tenant_no = v_tenant AND j.id = ANY (v_held) AND j.state + 0 = 4 /* blocked */
           AND NOT EXISTS (SELECT FROM headgate.job_dependencies d                       -- index: job_dependencies_unmet
                            WHERE d.tenant_no = v_tenant AND d.child_id = j.id AND d.met <> 1);
        CONTINUE WHEN v_free IS NULL;
        WITH moved AS (
            UPDATE headgate.jobs j
               SET flags = j.flags & ~256 /* waits */,
                   state = CASE WHEN j.run_at > v_now THEN 2 /* scheduled */
                                WHEN j.flags & 4 /* limit_key */ <> 0 THEN 4 /* blocked */ ELSE 0 /* pending */ END
             WHERE j.tenant_no = v_tenant AND j.id = ANY (v_free)
            RETURNING j.id, j.topic_no, j.state, j.epoch, j.attempt, j.run_at),
        noted AS (
            INSERT INTO headgate.job_events (tenant_no, job_id, at, kind, epoch, attempt, state, run_at, reason)
            SELECT v_tenant, m.id, v_now, 12 /* unblocked */, m.epoch, m.attempt, m.state, 
                   CASE WHEN m.state = 2 /* scheduled */ THEN m.run_at END, 'all it waited for has been done' FROM moved m)
        INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
        SELECT v_tenant, m.topic_no, 4 /* blocked */, m.state, count(*), v_now
          FROM moved m WHERE m.state <> 4 /* blocked */ GROUP BY 2, 4;
        PERFORM headgate.arrived_v1(v_tenant, v_free);
        IF v_lined IS NOT NULL THEN PERFORM headgate.line_up_v1(v_tenant, v_lined); END IF;
        RETURN QUERY SELECT v_tenant, j.topic_no, j.id, false FROM headgate.jobs j
                      WHERE j.tenant_no = v_tenant AND j.id = ANY (v_free) AND j.state + 0 = 0 /* pending */;
    END LOOP;
    -- Also when what was cancelled here has children of its own. Not when all that we took is locked.
    RETURN QUERY SELECT NULL::int, NULL::int, NULL::uuid, true
                  WHERE v_decided > 0 AND EXISTS (SELECT FROM headgate.dependency_checks);
END $$;
