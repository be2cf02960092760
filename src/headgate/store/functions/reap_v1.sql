-- The watchdog: ends attempts whose lease has expired, at most n_. Work that another
-- instance is settling or reaping right now is skipped. Returns what was reaped. floor_ leaves out the
-- dead prefix of the running index: every attempt that began before it has ended (see oldest_running_v1).
--
-- A lease that ends later than it could if it had been granted just now is of a time that has not come yet: the clock was set
-- back since. It is cut to what it would be now; else the job of a dead worker could not be claimed until the clock is there again.
--
-- What an ended attempt frees (the usage of a limit, a unique key, those that wait for it) may be locked: that is
-- waited for a tenth of a second. one_by_one_: each attempt by itself, and what cannot be ended is left for later, with
-- a row without a state that says why.
CREATE FUNCTION headgate.reap_v1(n_ int, floor_ timestamptz, one_by_one_ boolean DEFAULT false)
RETURNS TABLE (tenant_no int, id uuid, state smallint, run_at timestamptz, topic_no int, problem text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_tenants int[];
    v_ids     uuid[];
    v_epochs  bigint[];
    v_topics  int[];
    v_ahead   boolean[];
    v_lost    boolean[];
    v_one     int;
    v_now     timestamptz := headgate.clock_v1();
BEGIN
    PERFORM set_config('lock_timeout', CASE WHEN one_by_one_ THEN '5' ELSE '100' END, true);
    -- explain: expired
    SELECT array_agg(l.tenant_no), array_agg(l.id), array_agg(l.epoch), array_agg(l.topic_no), array_agg(l.ahead),
           array_agg(l.lost)
      INTO v_tenants, v_ids, v_epochs, v_topics, v_ahead, v_lost
      FROM (SELECT j.tenant_no, j.id, j.epoch, j.topic_no, j.lease_until >= v_now AS ahead,
                   j.lease_ms = 0 /* ended by expire_lost_v1 */ AS lost
              FROM headgate.jobs j                -- index: jobs_running
             WHERE j.state = 1 /* running */ AND j.claimed_at >= floor_
               AND (j.lease_until < v_now OR j.lease_until > v_now + j.lease_ms * interval '1 ms')
             ORDER BY j.claimed_at LIMIT n_ FOR UPDATE SKIP LOCKED) AS l;
    -- explain: end
    IF true = ANY (v_ahead) THEN
        UPDATE headgate.jobs j SET lease_until = v_now + j.lease_ms * interval '1 ms'
         WHERE j.tenant_no = ANY (ARRAY(SELECT DISTINCT t FROM unnest(v_tenants) AS t)) AND j.id = ANY (v_ids)
           AND ((j.tenant_no, j.id) IN (SELECT u.t, u.i FROM unnest(v_tenants, v_ids, v_ahead) AS u(t, i, ahead)
                                         WHERE u.ahead)) IS TRUE;
    END IF;
    IF one_by_one_ THEN
        FOR v_one IN 1 .. coalesce(cardinality(v_ids), 0) LOOP
            CONTINUE WHEN v_ahead[v_one];
            BEGIN
                RETURN QUERY
                SELECT v_tenants[v_one], l.id, l.state, l.run_at, v_topics[v_one], NULL::text
                  FROM headgate.expire_leases_v1(
                           v_tenants[v_one], v_ids[v_one:v_one], v_epochs[v_one:v_one], v_lost[v_one:v_one]) AS l;
            EXCEPTION WHEN OTHERS THEN
                RETURN QUERY
                SELECT v_tenants[v_one], v_ids[v_one], NULL::smallint, NULL::timestamptz, v_topics[v_one],
                       SQLSTATE || ' ' || SQLERRM;
            END;
        END LOOP;
        RETURN;
    END IF;
    FOR v_one IN SELECT DISTINCT t FROM unnest(v_tenants) AS t ORDER BY t LOOP
        RETURN QUERY
        SELECT v_one, l.id, l.state, l.run_at, g.topics[array_position(g.ids, l.id)], NULL::text
          FROM (SELECT array_agg(u.i) AS ids, array_agg(u.e) AS epochs, array_agg(u.topic) AS topics,
                       array_agg(u.lost) AS lost
                  FROM unnest(v_tenants, v_ids, v_epochs, v_topics, v_ahead, v_lost) AS u(t, i, e, topic, ahead, lost)
                 WHERE u.t = v_one AND NOT u.ahead) AS g
         CROSS JOIN LATERAL headgate.expire_leases_v1(v_one, g.ids, g.epochs, g.lost) AS l
         WHERE g.ids IS NOT NULL;
    END LOOP;
END $$;
