-- Called by whatever ends jobs, in its transaction, for those with the flag has_dependants or unique: the
-- key is free again, and jobs that wait for these are noted. True if a child may be free now (see unblock_ready_v1).
-- states_: how each ended, 5 completed, 6 dead, 7 cancelled, or 8: it was removed.
CREATE FUNCTION headgate.ended_v1(tenant_ int, ids_ uuid[], states_ smallint[]) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off
SET enable_nestloop = on SET jit = off AS $$
DECLARE v_waiting int;
BEGIN
    -- `live::int` keeps the index of live keys out of it: with stale statistics all of them would be read.
    UPDATE headgate.unique_jobs q SET live = false
     WHERE q.tenant_no = tenant_ AND q.job_id = ANY (ids_) AND q.live::int = 1;
    SELECT count(*) INTO v_waiting
      FROM (SELECT FROM unnest(ids_) AS e(id)
             CROSS JOIN LATERAL (SELECT FROM headgate.job_dependencies d
                                  WHERE d.tenant_no = tenant_ AND d.parent_id = e.id LIMIT 5001) AS c
             LIMIT 5001) AS s;
    IF v_waiting > 5000 THEN
        -- Too many for a flush that others wait for: the ends are noted, and worked off in parts.
        INSERT INTO headgate.dependency_checks (tenant_no, parent_id, state)
        SELECT tenant_, e.id, e.state FROM unnest(ids_, states_) AS e(id, state);
        RETURN true;
    END IF;
    RETURN v_waiting > 0 AND headgate.meet_v1(tenant_, ids_, states_, NULL);
END $$;
