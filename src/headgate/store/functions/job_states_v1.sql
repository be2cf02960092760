-- State, topic and epoch of jobs of one tenant, by their ids; those that do not exist are left out.
CREATE FUNCTION headgate.job_states_v1(tenant_ int, ids_ uuid[])
RETURNS TABLE (id uuid, state smallint, topic_no int, epoch bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    -- One snapshot for both: a job moves between the two, and is never in neither.
    RETURN QUERY
    SELECT j.id, j.state, j.topic_no, j.epoch FROM headgate.jobs j WHERE j.tenant_no = tenant_ AND j.id = ANY (ids_)
     UNION ALL
    SELECT a.id, a.state, a.topic_no, a.epoch FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id = ANY (ids_);
END $$;
