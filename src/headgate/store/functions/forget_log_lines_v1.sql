-- Looks at the log lines of the n_ jobs behind the given one in key order, and deletes those that are older than an hour and
-- whose job is in neither table: it was discarded while they were stored, or the clock was set back. Returns where to go on
-- (NULL: that was the end), and how many lines were deleted.
--
-- One snapshot: a job on its way from one table to the other is in one of them. Each step goes to the next job by the
-- primary key, past all lines of the one before.
CREATE FUNCTION headgate.forget_log_lines_v1(tenant_ int, job_ uuid, n_ int, OUT tenant int, OUT job uuid, OUT forgotten int)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
DECLARE
    v_before timestamptz := headgate.clock_v1() - interval '1 hour';
BEGIN
    WITH RECURSIVE looked AS (
        (SELECT l.tenant_no, l.job_id, 1 AS nth FROM headgate.job_logs l                            -- index: job_logs_pkey
          WHERE (l.tenant_no, l.job_id) > (tenant_, job_) ORDER BY l.tenant_no, l.job_id LIMIT 1)
         UNION ALL
        SELECT x.tenant_no, x.job_id, o.nth + 1
          FROM looked o
         CROSS JOIN LATERAL (SELECT l.tenant_no, l.job_id FROM headgate.job_logs l
                              WHERE (l.tenant_no, l.job_id) > (o.tenant_no, o.job_id)
                              ORDER BY l.tenant_no, l.job_id LIMIT 1) AS x
         WHERE o.nth < n_),
    orphaned AS MATERIALIZED (
        SELECT o.tenant_no, o.job_id FROM looked o
         WHERE NOT EXISTS (SELECT FROM headgate.jobs j WHERE j.tenant_no = o.tenant_no AND j.id = o.job_id)
           AND NOT EXISTS (SELECT FROM headgate.archive a WHERE a.tenant_no = o.tenant_no AND a.id = o.job_id)),
    gone AS (
        DELETE FROM headgate.job_logs d
         USING (SELECT g.ctid FROM orphaned o
                 CROSS JOIN LATERAL (SELECT l.ctid FROM headgate.job_logs l
                                      WHERE l.tenant_no = o.tenant_no AND l.job_id = o.job_id AND l.stored_at < v_before
                                        FOR UPDATE SKIP LOCKED) AS g) AS x      -- retention may be at them
         WHERE d.ctid = x.ctid
        RETURNING 1)
    SELECT l.tenant_no, l.job_id, (SELECT count(*) FROM gone)
      INTO tenant, job, forgotten
      FROM (SELECT 1) AS one LEFT JOIN looked l ON l.nth = n_;
END $$;
