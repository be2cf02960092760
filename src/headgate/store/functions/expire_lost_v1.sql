-- The session of a worker was lost lost_ms_ ago, and the worker has not come back: the leases of what it held end now, and the
-- watchdog ends the attempts. Returns (id, what): 'lost' for leases that were ended, or would have been without end_; 'locked'
-- for rows that another transaction has locked, for which the caller asks again; 'moved' for what has another owner. It never
-- waits.
--
-- A job has another owner when its worker has declared it to another instance, perhaps before this one noticed the loss. Then
-- the worker is back, and no lease is ended in this call: it may be about to declare the others. Left alone is also what was
-- renewed since by anyone, such as a unary heartbeat: a lease that began later than lost_ms_ ago. A renewal that left a longer
-- lease as it was cannot be seen here. A lease_ms of 0 marks a lease that was ended here, so that the error of the attempt is
-- WorkerLost; a renewal before it is reaped sets lease_ms again.
CREATE FUNCTION headgate.expire_lost_v1(
    tenant_ int, owner_ int, ids_ uuid[], epochs_ bigint[], lost_ms_ bigint, end_ boolean)
RETURNS TABLE (id uuid, what text)
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
    running AS MATERIALIZED (
        SELECT l.id, l.owner, l.lease_until, l.lease_ms FROM locked l
         WHERE l.state = 1 /* running */ AND (l.id, l.epoch) IN (SELECT t.id, t.epoch FROM given t)),
    moved AS MATERIALIZED (
        SELECT l.id FROM running l WHERE l.owner IS DISTINCT FROM owner_),
    lost AS MATERIALIZED (
        SELECT l.id FROM running l
         WHERE NOT EXISTS (SELECT FROM moved) AND l.lease_until > v_now
           AND l.lease_until - l.lease_ms * interval '1 ms' <= v_now - lost_ms_ * interval '1 ms'),
    expired AS (
        UPDATE headgate.jobs j SET lease_until = v_now, lease_ms = 0
         WHERE end_ AND j.tenant_no = tenant_ AND j.id = ANY (ARRAY(SELECT o.id FROM lost o))
           AND j.lease_until IS NOT NULL          -- as in renew_v1: claimed since this statement first saw it
        RETURNING j.id),
    busy AS (
        SELECT j.id, j.epoch FROM headgate.jobs j
         WHERE j.tenant_no = tenant_ AND j.state + 0 = 1 /* running */ AND j.owner = owner_
           AND j.id = ANY (ARRAY(SELECT t.id FROM given t WHERE t.id NOT IN (SELECT l.id FROM locked l))))
    SELECT e.id, 'lost' FROM expired e
     UNION ALL
    SELECT o.id, 'lost' FROM lost o WHERE NOT end_
     UNION ALL
    SELECT m.id, 'moved' FROM moved m
     UNION ALL
    SELECT b.id, 'locked' FROM busy b JOIN given t ON t.id = b.id AND t.epoch = b.epoch;
END $$;
