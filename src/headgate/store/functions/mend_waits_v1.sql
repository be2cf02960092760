-- The last net: looks at up to n_ unmet dependencies behind the given one in key order, and mends what no end of a parent
-- should have left behind: a parent that has ended or was removed, with a child that still waits for it; a broken dependency whose
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
                                        AND j.state + 0 = 4 /* blocked */ AND j.flags & 256 /* waits */ <> 0) THEN false
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
