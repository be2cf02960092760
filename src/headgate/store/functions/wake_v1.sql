-- Wakes the servers at the commit of the caller's transaction, with wakes as domain/wakes.py writes them; NULL or empty:
-- nothing to say. For the rare ones; jobs that are claimable at once wake by wake_arrivals_v1.
CREATE FUNCTION headgate.wake_v1(wakes_ text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF wakes_ <> '' AND current_setting('headgate.submits', true) = 'wake' THEN
        PERFORM pg_notify('headgate_topics', wakes_);
    END IF;
END $$;
