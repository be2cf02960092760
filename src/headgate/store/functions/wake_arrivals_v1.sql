-- At the commit of an application's transaction: wakes the servers for a topic in which it made jobs claimable; topic 0: asks
-- them for a tick (ADR 33).
-- Deferred, so that it runs just before the commit. PostgreSQL then takes one lock for all commits that notify, in the whole
-- cluster, and keeps it until the commit is on disk. So only one transaction of a topic notifies at a time: who finds another
-- one on this stretch leaves it out, and commits beside it. A server that was notified looks once more a moment later
-- (dispatch/listener.py), and finds those jobs, too.
CREATE FUNCTION headgate.wake_arrivals_v1() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_try_advisory_xact_lock(4847424, NEW.topic_no) THEN      -- a namespace of its own: the others' numbers are no topics
        PERFORM pg_notify('headgate_topics', CASE NEW.topic_no WHEN 0 THEN 'due' ELSE 's' || NEW.topic_no END);
    END IF;
    RETURN NULL;
END $$;
