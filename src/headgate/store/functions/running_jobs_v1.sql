-- The jobs of a tenant that run, the longest running first, at most n_. Reads at most look_at_ running jobs, whoever owns them,
-- and no other row of the table. floor_ leaves out the dead prefix of jobs_running, as in reap_v1: entries of attempts that
-- have ended are read until they are vacuumed.
CREATE FUNCTION headgate.running_jobs_v1(tenant_ int, n_ int, look_at_ int, floor_ timestamptz)
RETURNS TABLE (id uuid, topic_no int, attempt int, claimed_at timestamptz, worker text, owner int)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
    SELECT s.id, s.topic_no, s.attempt, s.claimed_at, split_part(s.worker, chr(31), 1), s.owner
      FROM (SELECT j.tenant_no, j.id, j.topic_no, j.attempt, j.claimed_at, j.worker, j.owner
              FROM headgate.jobs j WHERE j.state = 1 /* running */ AND j.claimed_at >= floor_      -- index: jobs_running
             ORDER BY j.claimed_at LIMIT look_at_) AS s
     WHERE s.tenant_no = tenant_ LIMIT n_
$$;
