-- No more members: counts them, and lets the callback go once all have done their part. Harmless when repeated; gives
-- false for no such batch. expired_: it was not sealed in time, so its callback, which would announce less than was meant,
-- is cancelled instead.
CREATE FUNCTION headgate.seal_batch_v1(tenant_ int, id_ uuid, expired_ boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now   timestamptz := headgate.clock_v1();
    v_batch record;
BEGIN
    -- Waits for submits that add members: they hold it shared until they commit.
    SELECT b.sealed_at, b.callback_id INTO v_batch FROM headgate.batches b
     WHERE b.tenant_no = tenant_ AND b.id = id_ FOR UPDATE;
    IF NOT FOUND THEN RETURN false; END IF;
    IF v_batch.sealed_at IS NOT NULL THEN RETURN true; END IF;
    UPDATE headgate.batches b
       SET sealed_at = v_now, expired = expired_,
           total = b.gone_completed + b.gone_dead + b.gone_cancelled
                   + (SELECT count(*) FROM headgate.batch_jobs m WHERE m.tenant_no = tenant_ AND m.batch_id = id_)
     WHERE b.tenant_no = tenant_ AND b.id = id_;
    IF v_batch.callback_id IS NOT NULL THEN
        UPDATE headgate.job_dependencies d SET met = CASE WHEN expired_ THEN 8 ELSE 1 END
         WHERE d.tenant_no = tenant_ AND d.parent_id = id_ AND d.child_id = v_batch.callback_id AND d.met = 0;
        INSERT INTO headgate.dependency_checks (tenant_no, child_id) VALUES (tenant_, v_batch.callback_id);
    END IF;
    RETURN true;
END $$;
