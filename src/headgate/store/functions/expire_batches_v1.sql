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
