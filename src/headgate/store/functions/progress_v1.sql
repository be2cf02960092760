-- Notes how far running jobs are; ids_ ascending, progress_ parallel. In no index, so this is a HOT update. What is not
-- running under that epoch any more is left alone. What another session has locked is not waited for, since heartbeats share
-- this connection: it is returned, and the caller tries it again. A renewal of the same job is enough for that.
CREATE FUNCTION headgate.progress_v1(tenant_ int, ids_ uuid[], epochs_ bigint[], progress_ jsonb[]) RETURNS SETOF uuid
LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    WITH locked AS MATERIALIZED (
        SELECT j.id, j.epoch, j.state FROM headgate.jobs j
         WHERE j.tenant_no = tenant_ AND j.id = ANY (ids_) FOR NO KEY UPDATE SKIP LOCKED),
    written AS (
        UPDATE headgate.jobs j SET progress = progress_[width_bucket(j.id, ids_)]
         WHERE j.tenant_no = tenant_
           AND j.id = ANY (ARRAY(SELECT l.id FROM locked l WHERE l.state = 1 /* running */
              AND l.epoch = epochs_[width_bucket(l.id, ids_)])))
    SELECT j.id FROM headgate.jobs j
     WHERE j.tenant_no = tenant_ AND j.id = ANY (ARRAY(SELECT u.id FROM unnest(ids_) AS u(id) EXCEPT SELECT l.id FROM locked l))
       AND j.state + 0 = 1 /* running */ AND j.epoch = epochs_[width_bucket(j.id, ids_)]      -- + 0: by the primary key
$$;
