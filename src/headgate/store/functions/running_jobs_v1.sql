-- The jobs of a tenant that run, the longest running first, at most n_. Reads at most look_at_ running jobs of all tenants,
-- and no other row of the table. floor_ leaves out the dead prefix of jobs_running, as in reap_v1: entries of attempts that
-- have ended are read until they are vacuumed. more: others may run that are not listed; on every row, and on one without a job
-- if there is none to list.
CREATE FUNCTION headgate.running_jobs_v1(tenant_ int, n_ int, look_at_ int, floor_ timestamptz)
RETURNS TABLE (id uuid, topic_no int, attempt int, claimed_at timestamptz, worker text, owner int, more boolean)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
    WITH seen AS MATERIALIZED (
        SELECT j.tenant_no, j.id, j.topic_no, j.attempt, j.claimed_at, j.worker, j.owner
          FROM headgate.jobs j WHERE j.state = 1 /* running */ AND j.claimed_at >= floor_      -- index: jobs_running
         ORDER BY j.claimed_at LIMIT look_at_),
    ours AS MATERIALIZED (
        SELECT s.id, s.topic_no, s.attempt, s.claimed_at, s.worker, s.owner FROM seen s
         WHERE s.tenant_no = tenant_ LIMIT n_ + 1)
    SELECT o.id, o.topic_no, o.attempt, o.claimed_at, split_part(o.worker, chr(31), 1), o.owner, c.more
      FROM (SELECT (SELECT count(*) FROM seen) >= look_at_ OR (SELECT count(*) FROM ours) > n_ AS more) AS c
      LEFT JOIN (SELECT u.id, u.topic_no, u.attempt, u.claimed_at, u.worker, u.owner FROM ours u LIMIT n_) AS o ON true
$$;
