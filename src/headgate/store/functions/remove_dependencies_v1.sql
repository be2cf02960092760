-- Takes back what add_dependencies_v1 wrote for jobs that the submit then did not make (their id or key was used before): these
-- rows only, since there may be older ones of the same id. A check that was noted finds nothing to free.
CREATE FUNCTION headgate.remove_dependencies_v1(
    tenant_ int, unique_ids_ uuid[], children_ uuid[], parents_ uuid[], members_ uuid[], batches_ uuid[])
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    -- Row by row and by ctid: the rows are this transaction's own, and a join could read all rows of the tenant instead.
    DELETE FROM headgate.unique_jobs q WHERE q.tenant_no = tenant_ AND q.job_id = ANY (unique_ids_);
    DELETE FROM headgate.job_dependencies d WHERE d.ctid = ANY (ARRAY(
        SELECT f.ctid FROM (SELECT u.child, u.parent FROM unnest(children_, parents_) AS u(child, parent)
                            UNION ALL
                            SELECT b.callback_id, u.member FROM unnest(members_, batches_) AS u(member, batch)
                              JOIN LATERAL (SELECT x.callback_id FROM headgate.batches x
                                             WHERE x.tenant_no = tenant_ AND x.id = u.batch OFFSET 0) AS b ON true) AS u
          JOIN LATERAL (SELECT x.ctid FROM headgate.job_dependencies x
                         WHERE x.tenant_no = tenant_ AND x.parent_id = u.parent AND x.child_id = u.child OFFSET 0) AS f ON true));
    DELETE FROM headgate.batch_jobs m WHERE m.ctid = ANY (ARRAY(
        SELECT f.ctid FROM unnest(members_, batches_) AS u(member, batch)
          JOIN LATERAL (SELECT x.ctid FROM headgate.batch_jobs x
                         WHERE x.tenant_no = tenant_ AND x.batch_id = u.batch AND x.job_id = u.member OFFSET 0) AS f ON true));
END $$;
