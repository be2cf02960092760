-- Since when the work of each topic waits: the due time of the job that is next in its rank class, the oldest of up to 16
-- classes, best classes first. Each is the first entry of an index range, so a backlog of any depth costs the same.
CREATE FUNCTION headgate.oldest_pending_v1(topics_ int[]) RETURNS TABLE (topic_no int, since timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_topic int;
    v_class bigint;
    v_head  record;
    v_since timestamptz;
BEGIN
    FOREACH v_topic IN ARRAY topics_ LOOP
        v_class := -2147483649;
        v_since := NULL;
        FOR v_round IN 1..16 LOOP
            SELECT j.rank_class, j.run_at INTO v_head FROM headgate.jobs j          -- index: jobs_claim_order
             WHERE j.topic_no = v_topic AND j.state = 0 /* pending */ AND j.rank_class > v_class
             ORDER BY j.rank_class, j.rank_at LIMIT 1;
            EXIT WHEN NOT FOUND;
            v_since := least(v_since, v_head.run_at);
            v_class := v_head.rank_class;
        END LOOP;
        IF v_since IS NOT NULL THEN
            topic_no := v_topic;
            since := v_since;
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;
