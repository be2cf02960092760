-- Notes how far running jobs are; ids_ ascending, progress_ parallel. In no index, so this is a HOT update. What is not
-- running under that epoch any more is left alone, and so is what another session has locked: progress is for people, a
-- late report changes nothing, and heartbeats, which share this connection, must not wait for one.
CREATE FUNCTION headgate.progress_v1(tenant_ int, ids_ uuid[], epochs_ bigint[], progress_ jsonb[]) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    WITH locked AS MATERIALIZED (
        SELECT j.id, j.epoch, j.state FROM headgate.jobs j
         WHERE j.tenant_no = tenant_ AND j.id = ANY (ids_) FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE headgate.jobs j SET progress = progress_[width_bucket(j.id, ids_)]
     WHERE j.tenant_no = tenant_
       AND j.id = ANY (ARRAY(SELECT l.id FROM locked l WHERE l.state = 1 /* running */
          AND l.epoch = epochs_[width_bucket(l.id, ids_)]))
$$;
