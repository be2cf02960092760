-- Notes how far running jobs are; ids_ ascending, progress_ parallel. In no index, so this is a HOT update. What is not
-- running under that epoch any more is left alone: progress is for people, and a late word changes nothing.
CREATE FUNCTION headgate.progress_v1(tenant_ int, ids_ uuid[], epochs_ int[], progress_ jsonb[]) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    UPDATE headgate.jobs j SET progress = progress_[width_bucket(j.id, ids_)]
     WHERE j.tenant_no = tenant_ AND j.id = ANY (ids_) AND j.state + 0 = 1
       AND j.epoch = epochs_[width_bucket(j.id, ids_)]
$$;
