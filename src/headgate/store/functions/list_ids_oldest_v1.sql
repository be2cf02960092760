-- list_ids_v1 the other way round: the next n_ ids of a tenant above an id, oldest first. Its comments hold here too.
CREATE FUNCTION headgate.list_ids_oldest_v1(
    tenant_ int, above_ uuid, n_ int, choice_ text, tag_ text, schedule_ int, look_at_ int, from_ timestamptz,
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
        SELECT u.id FROM ((SELECT j.id FROM headgate.jobs j WHERE j.tenant_no = tenant_ AND j.id > above_
                            ORDER BY j.id LIMIT n_)
                           UNION ALL
                          (SELECT a.id FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id > above_
                            ORDER BY a.id LIMIT n_)) AS u
         ORDER BY u.id LIMIT n_;
    WHEN 'live' THEN
        RETURN QUERY SELECT j.id FROM headgate.jobs j WHERE j.tenant_no = tenant_ AND j.id > above_
                      ORDER BY j.id LIMIT n_;
    WHEN 'finished' THEN
        RETURN QUERY SELECT a.id FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id > above_
                      ORDER BY a.id LIMIT n_;
    WHEN 'unhappy' THEN
        RETURN QUERY SELECT a.id FROM headgate.archive a                                       -- index: archive_unhappy
                      WHERE a.tenant_no = tenant_ AND a.id > above_ AND a.state IN (6, 7) /* dead, cancelled */
                      ORDER BY a.id LIMIT n_;
    WHEN 'tagged' THEN
        RETURN QUERY SELECT t.job_id FROM headgate.job_tags t
                      WHERE t.tenant_no = tenant_ AND t.tag = tag_ AND t.job_id > above_
                      ORDER BY t.job_id LIMIT n_;
    WHEN 'scheduled' THEN
        RETURN QUERY SELECT s.job_id FROM headgate.schedule_jobs s                        -- index: schedule_jobs_listed
                      WHERE s.tenant_no = tenant_ AND s.schedule_no = schedule_ AND s.job_id > above_
                      ORDER BY s.job_id LIMIT n_;
    WHEN 'unique' THEN
        RETURN QUERY SELECT q.job_id FROM headgate.unique_jobs q                            -- index: unique_jobs_listed
                      WHERE q.tenant_no = tenant_ AND q.key = tag_ AND q.job_id > above_
                      ORDER BY q.job_id LIMIT n_;
    WHEN 'recent' THEN
        RETURN QUERY
        SELECT u.id FROM ((SELECT j.id FROM headgate.jobs j WHERE j.tenant_no = tenant_ AND j.id > above_
                            ORDER BY j.id LIMIT n_)
                           UNION ALL
                          (SELECT a.id FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id > above_
                              AND a.finished_at >= from_ AND a.finished_at < before_
                            ORDER BY a.id LIMIT n_)) AS u
         ORDER BY u.id LIMIT n_;
    WHEN 'ended' THEN
        RETURN QUERY SELECT a.id FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id > above_
                        AND a.finished_at >= from_ AND a.finished_at < before_
                      ORDER BY a.id LIMIT n_;
    WHEN 'ended_badly' THEN
        RETURN QUERY SELECT a.id FROM headgate.archive a                                       -- index: archive_unhappy
                      WHERE a.tenant_no = tenant_ AND a.id > above_ AND a.state IN (6, 7) /* dead, cancelled */
                        AND a.finished_at >= from_ AND a.finished_at < before_
                      ORDER BY a.id LIMIT n_;
    ELSE      -- running or waiting, and few
        RETURN QUERY SELECT u.id FROM unnest(v_ids) AS u(id) WHERE u.id > above_ ORDER BY u.id LIMIT n_;
    END CASE;
END $$;
