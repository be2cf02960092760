-- The next n_ ids of a tenant below an id, newest first, from the narrowest order that holds what a list can match:
-- 'all', 'live', 'finished', 'unhappy' (dead, cancelled), 'tagged', 'scheduled' (made by a schedule), 'unique' (tag_ is the
-- unique key), 'running', 'waiting' (scheduled, retrying); 'recent', 'ended' and 'ended_badly' are all, finished and unhappy with the archive narrowed to the
-- days from from_ to before before_. Reads about n_ index entries and rows (running and waiting: at most look_at_ more),
-- whatever lies in the tables.
--
-- The days must be whole ones: then the bounds only leave partitions out. A bound within a day would be a filter behind
-- the LIMIT, and could read all of the day to find nothing.
--
-- A function for its settings: left alone, the planner reads and sorts both tables whole when it has no statistics, or no
-- idea of the LIMIT. With 100,000 live and 100,000 finished jobs, a page that matched nothing took 2.3 s; so, 0.1 s.
CREATE FUNCTION headgate.list_ids_v1(
    tenant_ int, below_ uuid, n_ int, choice_ text, tag_ text, schedule_ int, look_at_ int, from_ timestamptz,
    before_ timestamptz)
RETURNS SETOF uuid LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET max_parallel_workers_per_gather = 0
SET jit = off AS $$
DECLARE
    v_choice text := choice_;
    v_ids    uuid[];
    v_looked int;
BEGIN
    -- Few as a rule, and in an order of their own. Should they be many, the live jobs are read in the order of their ids.
    IF choice_ IN ('running', 'waiting') THEN
        SELECT f.ids, f.looked INTO v_ids, v_looked FROM headgate.first_live_v1(tenant_, choice_, look_at_) AS f;
    END IF;
    IF v_looked > look_at_ THEN
        v_choice := 'live';
    END IF;
    CASE v_choice
    WHEN 'all' THEN
        RETURN QUERY
        SELECT u.id FROM ((SELECT j.id FROM headgate.jobs j WHERE j.tenant_no = tenant_ AND j.id < below_
                            ORDER BY j.id DESC LIMIT n_)
                           UNION ALL
                          (SELECT a.id FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id < below_
                            ORDER BY a.id DESC LIMIT n_)) AS u
         ORDER BY u.id DESC LIMIT n_;
    WHEN 'live' THEN
        RETURN QUERY SELECT j.id FROM headgate.jobs j WHERE j.tenant_no = tenant_ AND j.id < below_
                      ORDER BY j.id DESC LIMIT n_;
    WHEN 'finished' THEN
        RETURN QUERY SELECT a.id FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id < below_
                      ORDER BY a.id DESC LIMIT n_;
    WHEN 'unhappy' THEN
        RETURN QUERY SELECT a.id FROM headgate.archive a                                       -- index: archive_unhappy
                      WHERE a.tenant_no = tenant_ AND a.id < below_ AND a.state IN (6, 7) /* dead, cancelled */
                      ORDER BY a.id DESC LIMIT n_;
    WHEN 'tagged' THEN
        RETURN QUERY SELECT t.job_id FROM headgate.job_tags t
                      WHERE t.tenant_no = tenant_ AND t.tag = tag_ AND t.job_id < below_
                      ORDER BY t.job_id DESC LIMIT n_;
    WHEN 'scheduled' THEN
        RETURN QUERY SELECT s.job_id FROM headgate.schedule_jobs s                        -- index: schedule_jobs_listed
                      WHERE s.tenant_no = tenant_ AND s.schedule_no = schedule_ AND s.job_id < below_
                      ORDER BY s.job_id DESC LIMIT n_;
    WHEN 'unique' THEN
        RETURN QUERY SELECT q.job_id FROM headgate.unique_jobs q                            -- index: unique_jobs_listed
                      WHERE q.tenant_no = tenant_ AND q.key = tag_ AND q.job_id < below_
                      ORDER BY q.job_id DESC LIMIT n_;
    WHEN 'recent' THEN
        RETURN QUERY
        SELECT u.id FROM ((SELECT j.id FROM headgate.jobs j WHERE j.tenant_no = tenant_ AND j.id < below_
                            ORDER BY j.id DESC LIMIT n_)
                           UNION ALL
                          (SELECT a.id FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id < below_
                              AND a.finished_at >= from_ AND a.finished_at < before_
                            ORDER BY a.id DESC LIMIT n_)) AS u
         ORDER BY u.id DESC LIMIT n_;
    WHEN 'ended' THEN
        RETURN QUERY SELECT a.id FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id < below_
                        AND a.finished_at >= from_ AND a.finished_at < before_
                      ORDER BY a.id DESC LIMIT n_;
    WHEN 'ended_badly' THEN
        RETURN QUERY SELECT a.id FROM headgate.archive a                                       -- index: archive_unhappy
                      WHERE a.tenant_no = tenant_ AND a.id < below_ AND a.state IN (6, 7) /* dead, cancelled */
                        AND a.finished_at >= from_ AND a.finished_at < before_
                      ORDER BY a.id DESC LIMIT n_;
    ELSE      -- running or waiting, and few
        RETURN QUERY SELECT u.id FROM unnest(v_ids) AS u(id) WHERE u.id < below_ ORDER BY u.id DESC LIMIT n_;
    END CASE;
END $$;
