-- Day partitions with nothing in them that will not be written to any more: days of the archive that retention has emptied,
-- and days of events without a day of the archive beside them.
CREATE FUNCTION headgate.empty_days_v1() RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_name  text;
    v_empty boolean;
BEGIN
    FOR v_name IN
        SELECT 'archive_' || to_char(d.day, 'YYYYMMDD') FROM headgate.days_due_v1() AS d WHERE d.empty
         UNION ALL
        SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'headgate.job_events'::regclass AND c.relname ~ '^job_events_[0-9]{8}$'
           AND right(c.relname, 8) < to_char(headgate.clock_v1() AT TIME ZONE 'UTC' - interval '1 day', 'YYYYMMDD')
           AND to_regclass('headgate.archive_' || right(c.relname, 8)) IS NULL
    LOOP
        BEGIN
            EXECUTE format('SELECT NOT EXISTS (SELECT FROM headgate.%I)', v_name) INTO v_empty;
        EXCEPTION WHEN undefined_table THEN   -- another instance has dropped it since the list was read
            CONTINUE;
        END;
        IF v_empty THEN RETURN NEXT v_name; END IF;
    END LOOP;
END $$;
