-- Forgets arrivals that every claimer has seen or no longer needs: at most once in apart_ms_, by any instance.
--
-- Deleted is what was visible in the snapshot that the call before this one has left. The generation counts these calls. A
-- claimer passes the generation it saw with its own snapshot: one behind, that snapshot is newer than the one used for
-- deleting, so it has seen all that was deleted; more than one behind, it must look from the head (claim_v1). By age alone
-- nothing may be deleted: a row can be an hour old when its transaction commits.
--
-- At most most_ rows go in one call. If that is not all, the next call continues with the same snapshot, as soon as it comes:
-- taken_at is 1970 so long. Every claimer that has the generation of the first of these calls, or one less, has seen what
-- they delete, so they leave it; the last one raises it again, with its new snapshot.
CREATE FUNCTION headgate.forget_arrivals_v1(apart_ms_ bigint, most_ int DEFAULT 100000) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_floor record;
    v_gone  int;
BEGIN
    SELECT f.snapshot, f.gone_to, f.taken_at INTO v_floor FROM headgate.arrivals_floor f
     WHERE f.one AND abs(extract(epoch FROM headgate.clock_v1() - f.taken_at)) * 1000 >= apart_ms_ FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN 0; END IF;
    IF pg_snapshot_xmax(v_floor.snapshot) > pg_snapshot_xmax(pg_current_snapshot()) THEN
        -- Restored into another cluster, whose transactions have other numbers: every claimer begins at the head.
        DELETE FROM headgate.arrivals;
        UPDATE headgate.arrivals_floor f
           SET generation = f.generation + 2, gone_to = '0', snapshot = pg_current_snapshot(), taken_at = headgate.clock_v1();
        RETURN 0;
    END IF;
    -- From where the last call ended: the entries before it are dead.
    DELETE FROM headgate.arrivals a
     WHERE a.ctid = ANY (ARRAY(SELECT x.ctid FROM headgate.arrivals x
                                WHERE x.xid >= v_floor.gone_to AND x.xid < pg_snapshot_xmax(v_floor.snapshot)
                                  AND pg_visible_in_snapshot(x.xid, v_floor.snapshot)
                                ORDER BY x.xid LIMIT most_));
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    IF v_gone = most_ THEN
        IF v_floor.taken_at <> timestamptz 'epoch' THEN
            UPDATE headgate.arrivals_floor f SET generation = f.generation + 1, taken_at = timestamptz 'epoch';
        END IF;
        RETURN v_gone;
    END IF;
    UPDATE headgate.arrivals_floor f
       SET generation = f.generation + 1, gone_to = pg_snapshot_xmin(v_floor.snapshot), snapshot = pg_current_snapshot(),
           taken_at = headgate.clock_v1();
    RETURN v_gone;
END $$;
