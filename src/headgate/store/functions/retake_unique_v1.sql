-- Finished jobs are about to be redriven: those with a unique key take it again. Returns the ids that cannot, because
-- another live job has it. Called with their archive rows locked.
CREATE FUNCTION headgate.retake_unique_v1(tenant_ int, ids_ uuid[]) RETURNS uuid[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_refused uuid[] := '{}';
    v_id      uuid;
BEGIN
    FOR v_id IN SELECT q.job_id FROM headgate.unique_jobs q
                 WHERE q.tenant_no = tenant_ AND q.job_id = ANY (ids_) AND NOT q.live ORDER BY q.topic_no, q.key LOOP
        BEGIN
            UPDATE headgate.unique_jobs q SET live = true WHERE q.tenant_no = tenant_ AND q.job_id = v_id;
        EXCEPTION WHEN unique_violation THEN      -- one by one: the others go on
            v_refused := v_refused || v_id;
        END;
    END LOOP;
    RETURN v_refused;
END $$;
