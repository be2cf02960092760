-- Why some outcomes were not applied: 1 duplicate (this very outcome was applied before), 2 stale, 3 unknown job.
-- One statement, and so one snapshot: a job on its way from jobs to archive is seen in exactly one of the two.
-- The LATERAL … LIMIT 1 look-ups are key probes whatever the statistics say; a join could be turned round.
CREATE FUNCTION headgate.receipts_v1(tenant_ int, ids_ uuid[], epochs_ bigint[], kinds_ smallint[], first_ord_ int)
RETURNS TABLE (ord int, receipt smallint, state smallint, run_at timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    SELECT first_ord_ + t.n::int - 1,
           CASE WHEN f.id IS NULL THEN 3
                WHEN f.epoch = t.epoch AND f.state <> 1 /* running */ AND f.last_outcome = t.kind THEN 1
                ELSE 2 END::smallint,
           f.state, f.run_at
      FROM unnest(ids_, epochs_, kinds_) WITH ORDINALITY AS t(id, epoch, kind, n)
      LEFT JOIN LATERAL (
           (SELECT j.id, j.epoch, j.state, j.last_outcome,
                   CASE WHEN j.state IN (2, 3) /* scheduled, retrying */
                      THEN j.run_at END AS run_at     -- only while it waits: as answered when applied
              FROM headgate.jobs j
             WHERE j.tenant_no = tenant_ AND j.id = t.id LIMIT 1)
           UNION ALL
           (SELECT a.id, a.epoch, a.state, a.last_outcome, NULL FROM headgate.archive a
             WHERE a.tenant_no = tenant_ AND a.id = t.id LIMIT 1)
           LIMIT 1) AS f ON true
$$;
