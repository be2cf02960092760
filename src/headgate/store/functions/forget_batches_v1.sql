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
