-- Detaches a day for a server that does not own the table: CONCURRENTLY, which blocks no one, is for owners, and cannot be
-- in a function. While this waits for its lock, settles wait behind it: so it waits for 200 ms, and is tried again later.
CREATE FUNCTION headgate.detach_day_v1(table_ text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
    v_begun boolean;
BEGIN
    IF table_ !~ '^(archive|job_events)_[0-9]{8}$' THEN RAISE EXCEPTION 'not a day partition: %', table_; END IF;
    SELECT i.inhdetachpending INTO v_begun FROM pg_inherits i
     WHERE i.inhrelid = to_regclass(format('headgate.%I', table_))
       AND i.inhparent IN ('headgate.archive'::regclass, 'headgate.job_events'::regclass);
    IF v_begun IS NULL THEN RETURN; END IF;      -- another instance was quicker
    EXECUTE format('ALTER TABLE headgate.%I DETACH PARTITION headgate.%I %s', left(table_, -9), table_,
                   CASE WHEN v_begun THEN 'FINALIZE' ELSE '' END);
END $$;
