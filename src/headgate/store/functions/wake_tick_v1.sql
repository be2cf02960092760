-- Asks the servers for a tick at the commit of an application's transaction, by an arrival of topic 0, which no claim reads: its
-- trigger decides just before the commit, as for jobs that are claimable at once (wake_arrivals_v1).
CREATE FUNCTION headgate.wake_tick_v1() RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO headgate.arrivals (topic_no, rank_class, rank_from, rank_to)
    SELECT 0, 0, 0, 0 WHERE current_setting('headgate.submits', true) = 'wake'
$$;
