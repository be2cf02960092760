-- Pushes leases forward; returns (ord, lost, cancel) only for those that are lost (another epoch, not running, gone) or
-- whose worker must be told that a cancel was requested. lease_until is in no index, so this is a HOT update.
CREATE FUNCTION headgate.renew_v1(tenants_ int[], counts_ int[], ids_ uuid[], epochs_ int[], lease_ms_ bigint[])
RETURNS TABLE (ord int, lost boolean, cancel boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_nestloop = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_from   int := 1;
    v_to     int;
    v_ids    uuid[];
    v_now    timestamptz := headgate.clock_v1();
BEGIN
    IF cardinality(tenants_) > 1 THEN      -- one run is updated in id order, several are not
        PERFORM headgate.lock_jobs_v1(tenants_, counts_, ids_);
    END IF;
    FOR v_run IN 1 .. cardinality(tenants_) LOOP
        v_to := v_from + counts_[v_run] - 1;
        v_ids := ids_[v_from:v_to];
        RETURN QUERY
        WITH told AS MATERIALIZED (
            SELECT u.id, u.epoch, u.n::int AS n
              FROM unnest(v_ids, epochs_[v_from:v_to]) WITH ORDINALITY AS u(id, epoch, n)),
        held AS (
            UPDATE headgate.jobs j
               -- Never shortened: a handler may have asked for longer.
               SET lease_until = greatest(j.lease_until, v_now + lease_ms_[v_run] * interval '1 ms')
             WHERE j.tenant_no = tenants_[v_run] AND j.id = ANY (v_ids) AND j.state + 0 = 1
               AND ((j.id, j.epoch) IN (SELECT t.id, t.epoch FROM told t)) IS TRUE
            RETURNING j.id, j.epoch, j.flags & 16 <> 0 AS cancel)
        SELECT v_from + t.n - 1, h.id IS NULL, coalesce(h.cancel, false)
          -- With the epoch: who lost a job and who got it may both be among those told.
          FROM told t LEFT JOIN held h ON h.id = t.id AND h.epoch = t.epoch
         WHERE h.id IS NULL OR h.cancel;
        v_from := v_to + 1;
    END LOOP;
END $$;
