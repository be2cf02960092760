-- Wakes the servers at the commit of the caller's transaction, with wakes as domain/wakes.py writes them; NULL or empty:
-- nothing to say. For transactions of applications only: PostgreSQL takes one lock for all commits that notify, in the whole
-- cluster, and a server tells the others after its own commits instead (ADR 31). A hint: SET headgate.wake = off leaves it out.
CREATE FUNCTION headgate.wake_v1(wakes_ text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF wakes_ <> '' AND coalesce(lower(current_setting('headgate.wake', true)), '') NOT IN ('off', 'false', 'no', '0') THEN
        PERFORM pg_notify('headgate_topics', wakes_);
    END IF;
END $$;
