-- The newest n_ dead or cancelled jobs of a tenant (index: archive_unhappy), of which the dead are put together where topic
-- and error are the same to the letter; what is alike but for a number is left to domain/fingerprint.py. Each row also
-- says how many were looked at. A function for its settings, as list_ids_v1.
CREATE FUNCTION headgate.dead_letters_v1(tenant_ int, topics_ int[], n_ int)
RETURNS TABLE (topic_no int, last_error text, n bigint, first_at timestamptz, last_at timestamptz, sample_id uuid,
               looked_at bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET max_parallel_workers_per_gather = 0 SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH newest AS MATERIALIZED (
        -- Its beginning only: some 20,000 errors of 8,000 characters each would all be in the server's memory at once.
        SELECT a.id, a.topic_no, a.state, left(a.last_error, 1000) AS last_error, a.finished_at FROM headgate.archive a
         WHERE a.tenant_no = tenant_ AND a.state IN (6, 7) /* dead, cancelled */ ORDER BY a.id DESC LIMIT n_)
    SELECT w.topic_no, w.last_error, count(*), min(w.finished_at), max(w.finished_at),
           (array_agg(w.id ORDER BY w.finished_at DESC))[1], (SELECT count(*) FROM newest)
      FROM newest w WHERE w.state = 6 /* dead */ AND (topics_ IS NULL OR w.topic_no = ANY (topics_)) GROUP BY 1, 2;
END $$;
