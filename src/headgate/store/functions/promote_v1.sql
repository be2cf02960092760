-- Makes due jobs claimable, the longest due first: at most n_, skipping what another instance is promoting. Rank and
-- priority stay, so a promoted job outranks younger work of its priority. floor_ leaves out the dead prefix of the due
-- index (everything up to there was promoted before); pass -infinity now and then to catch what landed below it.
CREATE FUNCTION headgate.promote_v1(n_ int, floor_ timestamptz)
RETURNS TABLE (tenant_no int, topic_no int, id uuid, rank_class int, rank_at bigint, run_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now     timestamptz := headgate.clock_v1();
    v_tenants int[];
    v_ids     uuid[];
    v_topics  int[];
    v_states  smallint[];
    v_tos     smallint[];          -- 4 for a job with a limit key: into its key's line
    v_one     int;
BEGIN
    -- explain: due
    SELECT array_agg(d.tenant_no), array_agg(d.id), array_agg(d.topic_no), array_agg(d.state),
           array_agg((d.flags & 4)::smallint)
      INTO v_tenants, v_ids, v_topics, v_states, v_tos
      FROM (SELECT j.tenant_no, j.id, j.topic_no, j.state, j.flags FROM headgate.jobs j                       -- index: jobs_due
             WHERE j.state IN (2, 3) AND j.run_at >= floor_ AND j.run_at <= v_now
             ORDER BY j.run_at LIMIT n_ FOR UPDATE SKIP LOCKED) AS d;
    -- explain: end
    IF v_ids IS NULL THEN RETURN; END IF;
    INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
    SELECT u.tenant_no, u.topic_no, u.state, u.goes, count(*), v_now
      FROM unnest(v_tenants, v_topics, v_states, v_tos) AS u(tenant_no, topic_no, state, goes) GROUP BY 1, 2, 3, 4;
    RETURN QUERY
    UPDATE headgate.jobs j SET state = j.flags & 4
     WHERE j.tenant_no = ANY (ARRAY(SELECT DISTINCT t FROM unnest(v_tenants) AS t)) AND j.id = ANY (v_ids)
       -- Locked by us, so still as seen; the pair is checked because one id may live under two tenants.
       AND ((j.tenant_no, j.id) IN (SELECT u.t, u.i FROM unnest(v_tenants, v_ids) AS u(t, i))) IS TRUE
    RETURNING j.tenant_no, j.topic_no, j.id, j.rank_class, j.rank_at, j.run_at;
    FOR v_one IN SELECT DISTINCT t FROM unnest(v_tenants) AS t ORDER BY t LOOP
        PERFORM headgate.arrived_v1(v_one, v_ids);
    END LOOP;
    IF 4 = ANY (v_tos) THEN
        FOR v_one IN SELECT DISTINCT u.t FROM unnest(v_tenants, v_tos) AS u(t, goes) WHERE u.goes = 4 ORDER BY 1 LOOP
            PERFORM headgate.line_up_v1(v_one, (SELECT array_agg(u.i) FROM unnest(v_tenants, v_ids, v_tos) AS u(t, i, goes)
                                                 WHERE u.t = v_one AND u.goes = 4));
        END LOOP;
    END IF;
END $$;
