-- Drops a detached day; the counts people read follow in the same transaction. whole_: all of it is old. Else it was
-- detached because it was empty; should it not be (the clock was set back by days), it is attached again. True if dropped.
-- With the owner's rights, as detach_day_v1 (ADR 26).
CREATE FUNCTION headgate.retire_day_v1(table_ text, whole_ boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_day    date;
    v_filled boolean;
BEGIN
    IF table_ !~ '^(archive|job_events)_[0-9]{8}$' THEN RAISE EXCEPTION 'not a day partition: %', table_; END IF;
    v_day := to_date(right(table_, 8), 'YYYYMMDD');
    -- Locked before it is counted: two that had both counted would wait for each other with the drop.
    EXECUTE format('LOCK TABLE headgate.%I IN ACCESS EXCLUSIVE MODE', table_);
    EXECUTE format('SELECT EXISTS (SELECT FROM headgate.%I)', table_) INTO v_filled;
    IF v_filled AND NOT whole_ THEN
        EXECUTE format('ALTER TABLE headgate.%I ATTACH PARTITION headgate.%I FOR VALUES FROM (%L) TO (%L)',
                       left(table_, -9), table_, v_day || ' 00:00:00+00', (v_day + 1) || ' 00:00:00+00');
        UPDATE headgate.retention_days r SET leaving = false WHERE r.day = v_day AND table_ LIKE 'archive%';
        RETURN false;
    END IF;
    IF table_ LIKE 'archive%' THEN
        EXECUTE format('INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at) '
                       'SELECT tenant_no, topic_no, state, -1, count(*), headgate.clock_v1() FROM headgate.%I '
                       'GROUP BY 1, 2, 3', table_);
        DELETE FROM headgate.retention_days r WHERE r.day = v_day;
    END IF;
    EXECUTE format('DROP TABLE headgate.%I', table_);
    RETURN true;
END $$;
