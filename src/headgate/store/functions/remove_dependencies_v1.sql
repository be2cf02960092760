-- Takes back what add_dependencies_v1 wrote for jobs that the submit then did not make (their id or key was used before): the very
-- rows, for there may be older ones of the same id. A check that was noted finds nothing to free.
CREATE FUNCTION headgate.remove_dependencies_v1(
    tenant_ int, unique_ids_ uuid[], children_ uuid[], parents_ uuid[], members_ uuid[], batches_ uuid[])
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    DELETE FROM headgate.unique_jobs q WHERE q.tenant_no = tenant_ AND q.job_id = ANY (unique_ids_);
    DELETE FROM headgate.job_dependencies d USING unnest(children_, parents_) AS u(child, parent)
     WHERE d.tenant_no = tenant_ AND d.parent_id = u.parent AND d.child_id = u.child;
    DELETE FROM headgate.job_dependencies d USING unnest(members_, batches_) AS u(member, batch)
     WHERE d.tenant_no = tenant_ AND d.parent_id = u.member
       AND d.child_id = (SELECT b.callback_id FROM headgate.batches b WHERE b.tenant_no = tenant_ AND b.id = u.batch);
    DELETE FROM headgate.batch_jobs m USING unnest(members_, batches_) AS u(member, batch)
     WHERE m.tenant_no = tenant_ AND m.batch_id = u.batch AND m.job_id = u.member;
END $$;
