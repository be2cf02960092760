-- A flush has made jobs with limit keys: notes their keys, and lines up those that are due. undo_ are ords taken back.
CREATE FUNCTION headgate.enter_line_v1(
    tenant_nos_ int[], ids_ uuid[], topic_nos_ int[], limit_ords_ int[], limit_keys_ text[], undo_ int[], new_tenants_ int[],
    new_ids_ uuid[])
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE v_one record;
BEGIN
    FOR v_one IN
        WITH noted AS (
            INSERT INTO headgate.job_limit_keys (tenant_no, job_id, topic_no, limit_key)
            SELECT tenant_nos_[l.o], ids_[l.o], topic_nos_[l.o], l.key FROM unnest(limit_ords_, limit_keys_) AS l(o, key)
             WHERE l.o <> ALL (undo_)
               AND (tenant_nos_[l.o], ids_[l.o]) IN (SELECT u.t, u.i FROM unnest(new_tenants_, new_ids_) AS u(t, i))
             ORDER BY 1, 2
            -- The job is new: a key that is there is of one with its id that retention is removing (retire_chunk_v1.sql).
            ON CONFLICT (tenant_no, job_id) DO UPDATE SET topic_no = excluded.topic_no, limit_key = excluded.limit_key
            RETURNING tenant_no, job_id)
        SELECT n.tenant_no, array_agg(n.job_id) AS ids FROM noted n GROUP BY 1 ORDER BY 1
    LOOP
        PERFORM headgate.line_up_v1(v_one.tenant_no, v_one.ids);      -- takes up those that are blocked, not the scheduled
    END LOOP;
END $$;
