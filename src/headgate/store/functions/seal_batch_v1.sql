-- No more members: counts them, and lets the callback go once all have done their part. Harmless when repeated; gives
-- false for no such batch. expired_: nobody sealed it in time, so its callback, which would announce less than was meant,
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

-- Closes up to n_ batches that were not sealed in time.
CREATE FUNCTION headgate.expire_batches_v1(n_ int) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_now  timestamptz := headgate.clock_v1();
    v_one  record;
    v_done int := 0;
BEGIN
    FOR v_one IN SELECT b.tenant_no, b.id FROM headgate.batches b
                  WHERE b.sealed_at IS NULL AND b.expires_at <= v_now
                  ORDER BY b.expires_at LIMIT n_ FOR UPDATE SKIP LOCKED LOOP
        PERFORM headgate.seal_batch_v1(v_one.tenant_no, v_one.id, true);
        v_done := v_done + 1;
    END LOOP;
    RETURN v_done;
END $$;

-- Looks at the n_ batches that were sealed next after (sealed_, id_), and forgets those none of whose jobs, the callback
-- included, is known any more. Returns how many were forgotten, and the last one looked at (NULL: that was the end). By
-- place and not by age: batches whose jobs are kept for years must not hide those behind them.
CREATE FUNCTION headgate.forget_batches_v1(sealed_ timestamptz, id_ uuid, n_ int, OUT forgotten int, OUT sealed timestamptz, OUT id uuid)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    WITH looked AS MATERIALIZED (
        SELECT b.tenant_no, b.id, b.sealed_at, b.callback_id FROM headgate.batches b                -- index: batches_sealed
         WHERE b.sealed_at < headgate.clock_v1() - interval '1 day' AND (b.sealed_at, b.id) > (sealed_, id_)
         ORDER BY b.sealed_at, b.id LIMIT n_),
    gone AS (
        DELETE FROM headgate.batches b USING looked o
         WHERE b.tenant_no = o.tenant_no AND b.id = o.id
           AND NOT EXISTS (SELECT FROM headgate.batch_jobs m WHERE m.tenant_no = o.tenant_no AND m.batch_id = o.id)
           AND NOT EXISTS (SELECT FROM headgate.jobs j WHERE j.tenant_no = o.tenant_no AND j.id = o.callback_id)
           AND NOT EXISTS (SELECT FROM headgate.archive a WHERE a.tenant_no = o.tenant_no AND a.id = o.callback_id)
        RETURNING 1)
    SELECT (SELECT count(*) FROM gone), CASE WHEN count(*) = n_ THEN max(l.sealed_at) END,
           CASE WHEN count(*) = n_ THEN (array_agg(l.id ORDER BY l.sealed_at DESC, l.id DESC))[1] END
      INTO forgotten, sealed, id FROM looked l;
END $$;
