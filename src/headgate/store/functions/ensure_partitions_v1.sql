-- Makes the day partitions from yesterday to `days_ahead_` days from now; returns the names of those it made.
-- Each is made standalone and then attached: ATTACH takes only a SHARE UPDATE EXCLUSIVE lock on the parent, while
-- CREATE … PARTITION OF would stop every settle for its duration. Yesterday is included for a clock that steps back.
-- With the owner's rights: a server that is not the owner makes no tables of its own (ADR 26).
CREATE FUNCTION headgate.ensure_partitions_v1(days_ahead_ int) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_parent text;
    v_day    date;
    v_name   text;
BEGIN
    -- Two instances may come at the same moment; the second then finds everything made.
    PERFORM pg_advisory_xact_lock(4847423, 2 /* partitions */);
    FOREACH v_parent IN ARRAY ARRAY['archive', 'job_events'] LOOP
        FOR v_day IN SELECT d::date FROM generate_series((headgate.clock_v1() AT TIME ZONE 'UTC')::date - 1,
                                                          (headgate.clock_v1() AT TIME ZONE 'UTC')::date + least(days_ahead_, 366),
                                                          interval '1 day') AS d LOOP
            v_name := v_parent || '_' || to_char(v_day, 'YYYYMMDD');
            -- A standalone leftover of an interrupted run is attached below, not made again.
            CONTINUE WHEN EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                                   WHERE i.inhparent = format('headgate.%I', v_parent)::regclass
                                     AND c.relname = v_name);
            IF to_regclass(format('headgate.%I', v_name)) IS NULL THEN
                EXECUTE format('CREATE TABLE headgate.%I (LIKE headgate.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS '
                               'INCLUDING STORAGE) WITH (autovacuum_vacuum_insert_scale_factor = 0.2)', v_name, v_parent);
            END IF;
            EXECUTE format('ALTER TABLE headgate.%I ATTACH PARTITION headgate.%I FOR VALUES FROM (%L) TO (%L)',
                           v_parent, v_name, to_char(v_day, 'YYYY-MM-DD') || ' 00:00:00+00',
                           to_char(v_day + 1, 'YYYY-MM-DD') || ' 00:00:00+00');
            RETURN NEXT v_name;
        END LOOP;
    END LOOP;
END $$;
