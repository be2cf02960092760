-- The failed attempts among the newest n_ events of a tenant's jobs (index: job_events_followed), put together where topic and
-- error are the same to the letter; the rest is left to domain/fingerprint.py. Each row also says how many events were looked
-- at, and when the oldest of them was. Times before since_ are cut off after the limit: within it, a day without failures
-- would be read whole. A function for its settings, as dead_letters_v1.
CREATE FUNCTION headgate.failing_v1(tenant_ int, topics_ int[], since_ timestamptz, n_ int)
RETURNS TABLE (topic_no int, error text, n bigint, first_at timestamptz, last_at timestamptz, sample_id uuid,
               looked_at bigint, oldest_at timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET max_parallel_workers_per_gather = 0 SET jit = off AS $$
#variable_conflict use_column
DECLARE v_day timestamptz := date_trunc('day', since_ AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
BEGIN
    RETURN QUERY
    WITH newest AS MATERIALIZED (
        SELECT e.job_id, e.at, e.kind, e.error_type, left(e.error_message, 500) AS message FROM headgate.job_events e
         WHERE e.tenant_no = tenant_ AND e.at >= v_day ORDER BY e.xid DESC LIMIT n_),
    failures AS MATERIALIZED (
        -- A job that has ended since is in the archive of a day from then on: others are not looked at.
        SELECT coalesce(j.topic_no, (SELECT a.topic_no FROM headgate.archive a
                                      WHERE a.tenant_no = tenant_ AND a.id = w.job_id AND a.finished_at >= since_
                                      LIMIT 1)) AS topic_no,
               w.job_id, w.at, coalesce(w.error_type || ': ' || w.message, w.error_type, w.message, 'lease expired')
                               AS error
          FROM newest w LEFT JOIN headgate.jobs j ON j.tenant_no = tenant_ AND j.id = w.job_id
         WHERE w.kind IN (1, 3) /* failed, lease expired */ AND w.at >= since_)
    SELECT f.topic_no, f.error, count(*), min(f.at), max(f.at), (array_agg(f.job_id ORDER BY f.at DESC))[1],
           (SELECT count(*) FROM newest), (SELECT min(w.at) FROM newest w)
      FROM failures f WHERE f.topic_no IS NOT NULL AND (topics_ IS NULL OR f.topic_no = ANY (topics_)) GROUP BY 1, 2;
END $$;
