-- Keys whose next token is due, and keys of topics whose limits were changed: admits jobs that may run, for at most n_
-- keys, and never waits for a lock. Says which topics have pending jobs (now) or will have (when), and when the next key is due.
CREATE FUNCTION headgate.admit_due_v1(n_ int) RETURNS TABLE (topic_no int, at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := headgate.clock_v1();
    v_one record;
BEGIN
    FOR v_one IN
        SELECT d.tenant_no, array_agg(d.topic_no) AS topics, array_agg(d.limit_key) AS keys
          FROM (SELECT u.tenant_no, u.topic_no, u.limit_key FROM headgate.limit_usage u
                 WHERE u.next_at <= v_now ORDER BY u.next_at LIMIT n_ FOR UPDATE SKIP LOCKED) AS d
         GROUP BY 1 ORDER BY 1
    LOOP
        RETURN QUERY SELECT a.topic_no, a.at FROM headgate.admit_v1(v_one.tenant_no, v_one.topics, v_one.keys) AS a;
    END LOOP;
    FOR v_one IN
        SELECT l.topic_no, l.tenant_no, l.swept_to FROM headgate.topic_limits l
         WHERE l.swept_to IS NOT NULL ORDER BY l.topic_no LIMIT 10 FOR UPDATE SKIP LOCKED
    LOOP
        DECLARE
            v_keys text[];
        BEGIN
            -- Behind the last one looked at. A row that is locked just now is admitted by the session that holds it.
            SELECT array_agg(d.limit_key) INTO v_keys
              FROM (SELECT u.limit_key FROM headgate.limit_usage u
                     WHERE u.topic_no = v_one.topic_no AND u.limit_key > v_one.swept_to
                     ORDER BY u.limit_key LIMIT n_) AS d;
            UPDATE headgate.topic_limits l SET swept_to = v_keys[cardinality(v_keys)] WHERE l.topic_no = v_one.topic_no;
            SELECT array_agg(d.limit_key) INTO v_keys
              FROM (SELECT u.limit_key FROM headgate.limit_usage u
                     WHERE u.topic_no = v_one.topic_no AND u.limit_key = ANY (v_keys)
                     ORDER BY u.limit_key FOR UPDATE SKIP LOCKED) AS d;
            IF v_keys IS NOT NULL THEN
                RETURN QUERY SELECT a.topic_no, a.at FROM headgate.admit_v1(
                    v_one.tenant_no, array_fill(v_one.topic_no, ARRAY[cardinality(v_keys)]), v_keys) AS a;
            END IF;
        END;
    END LOOP;
    RETURN QUERY SELECT u.topic_no, u.next_at FROM headgate.limit_usage u
                  WHERE u.next_at IS NOT NULL ORDER BY u.next_at LIMIT 1;
END $$;
