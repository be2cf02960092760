-- Pushes leases forward; returns (ord, lost, cancel, skipped) only for those that are lost (another epoch, not running,
-- gone), whose worker must learn that a cancel was requested, or that another session has locked. lease_until is in no
-- index, so this is a HOT update.
--
-- Never waits: a row that another transaction holds would else cost everyone in this call their leases. Such a row is
-- neither renewed nor lost, it is *skipped*: the caller has to ask again, and must not count on it until then. Who never
-- waits may also come to the rows in any order.
--
-- owner_: the instance that the worker has just connected to, with these jobs declared. Renewals of a session leave the owner
-- as it is: an instance that was frozen must not take back what its worker has declared elsewhere (see expire_lost_v1).
CREATE FUNCTION headgate.renew_v1(
    tenants_ int[], counts_ int[], ids_ uuid[], epochs_ bigint[], lease_ms_ bigint[], owner_ int DEFAULT NULL)
RETURNS TABLE (ord int, lost boolean, cancel boolean, skipped boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_nestloop = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_from   int := 1;
    v_to     int;
    v_ids    uuid[];
    v_now    timestamptz := headgate.clock_v1();
BEGIN
    FOR v_run IN 1 .. cardinality(tenants_) LOOP
        v_to := v_from + counts_[v_run] - 1;
        v_ids := ids_[v_from:v_to];
        RETURN QUERY
        WITH given AS MATERIALIZED (
            SELECT u.id, u.epoch, u.n::int AS n
              FROM unnest(v_ids, epochs_[v_from:v_to]) WITH ORDINALITY AS u(id, epoch, n)),
        locked AS MATERIALIZED (           -- as they are now, not as this statement first saw them
            SELECT j.id, j.epoch, j.state FROM headgate.jobs j
             WHERE j.tenant_no = tenants_[v_run] AND j.id = ANY (v_ids)
               FOR NO KEY UPDATE SKIP LOCKED),          -- what the update takes, no more
        ours AS MATERIALIZED (
            SELECT l.id, l.epoch FROM locked l
             WHERE l.state = 1 /* running */ AND (l.id, l.epoch) IN (SELECT t.id, t.epoch FROM given t)),
        held AS (
            UPDATE headgate.jobs j
               -- Never shortened: a handler may have asked for longer.
               SET lease_until = greatest(j.lease_until, v_now + lease_ms_[v_run] * interval '1 ms'),
                   lease_ms = CASE WHEN j.lease_until > v_now + lease_ms_[v_run] * interval '1 ms' THEN j.lease_ms
                                   ELSE lease_ms_[v_run] END,
                   owner = coalesce(owner_, j.owner)
             WHERE j.tenant_no = tenants_[v_run] AND j.id = ANY (ARRAY(SELECT o.id FROM ours o))
               -- Claimed since this statement first saw it: the table's checks would look at the row as it was then.
               AND j.lease_until IS NOT NULL
            RETURNING j.id, j.epoch, j.flags & 16 /* cancel_requested */ <> 0 AS cancel),
        busy AS (
            -- Seen here under that epoch, and not to be had. What is seen under another one, or not at all, is lost for
            -- good, locked or not: epochs only grow.
            SELECT j.id, j.epoch FROM headgate.jobs j
             WHERE j.tenant_no = tenants_[v_run] AND j.state + 0 = 1 /* running */
               AND j.id = ANY (ARRAY(SELECT t.id FROM given t WHERE t.id NOT IN (SELECT l.id FROM locked l))))
        SELECT v_from + t.n - 1, h.id IS NULL AND o.id IS NULL AND b.id IS NULL, coalesce(h.cancel, false),
               h.id IS NULL AND (o.id IS NOT NULL OR b.id IS NOT NULL)
          -- With the epoch: the worker that lost a job and the one that has it now may both have passed it.
          FROM given t
          LEFT JOIN ours o ON o.id = t.id AND o.epoch = t.epoch
          LEFT JOIN held h ON h.id = t.id AND h.epoch = t.epoch
          LEFT JOIN busy b ON b.id = t.id AND b.epoch = t.epoch
         WHERE h.id IS NULL OR h.cancel;
        v_from := v_to + 1;
    END LOOP;
END $$;
