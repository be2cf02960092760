-- The session of a worker was lost lost_ms_ ago, and the worker has not come back: the leases of what it held end now, and the
-- watchdog ends the attempts. Returns (id, locked): leases that were ended, and rows that another transaction has locked; for
-- these the caller asks again. It never waits.
--
-- Left alone is what has another owner: the worker has declared it to another instance, perhaps before this one noticed the
-- loss. And what was renewed since by anyone, such as a unary heartbeat: a lease that began later than lost_ms_ ago.
CREATE FUNCTION headgate.expire_lost_v1(tenant_ int, owner_ int, ids_ uuid[], epochs_ bigint[], lost_ms_ bigint)
RETURNS TABLE (id uuid, locked boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_nestloop = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now    timestamptz := headgate.clock_v1();
BEGIN
    RETURN QUERY
    WITH given AS MATERIALIZED (
        SELECT u.id, u.epoch FROM unnest(ids_, epochs_) AS u(id, epoch)),
    locked AS MATERIALIZED (           -- as they are now, not as this statement first saw them
        SELECT j.id, j.epoch, j.state, j.owner, j.lease_until, j.lease_ms FROM headgate.jobs j
         WHERE j.tenant_no = tenant_ AND j.id = ANY (ids_)
           FOR NO KEY UPDATE SKIP LOCKED),
    lost AS MATERIALIZED (
        SELECT l.id FROM locked l
         WHERE l.state = 1 /* running */ AND l.owner = owner_ AND (l.id, l.epoch) IN (SELECT t.id, t.epoch FROM given t)
           AND l.lease_until > v_now
           AND l.lease_until - l.lease_ms * interval '1 ms' <= v_now - lost_ms_ * interval '1 ms'),
    expired AS (
        UPDATE headgate.jobs j SET lease_until = v_now
         WHERE j.tenant_no = tenant_ AND j.id = ANY (ARRAY(SELECT o.id FROM lost o))
           AND j.lease_until IS NOT NULL          -- as in renew_v1: claimed since this statement first saw it
        RETURNING j.id),
    busy AS (
        SELECT j.id, j.epoch FROM headgate.jobs j
         WHERE j.tenant_no = tenant_ AND j.state + 0 = 1 /* running */ AND j.owner = owner_
           AND j.id = ANY (ARRAY(SELECT t.id FROM given t WHERE t.id NOT IN (SELECT l.id FROM locked l))))
    SELECT e.id, false FROM expired e
     UNION ALL
    SELECT b.id, true FROM busy b JOIN given t ON t.id = b.id AND t.epoch = b.epoch;
END $$;
