-- Makes due jobs claimable, the longest due first: at most n_, skipping what another instance is promoting. Rank and
-- priority stay, so a promoted job outranks younger work of its priority. floor_ leaves out the dead prefix of the due
-- index (everything up to there was promoted before); pass -infinity periodically to catch what landed below it.
-- one_by_one_: each job by itself; what cannot be promoted (its key's usage is locked, its row cannot be written) is left for
-- later, with a row that says why.
CREATE FUNCTION headgate.promote_v1(n_ int, floor_ timestamptz, one_by_one_ boolean DEFAULT false)
RETURNS TABLE (tenant_no int, topic_no int, id uuid, rank_class int, rank_at bigint, run_at timestamptz, problem text)
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
           array_agg((d.flags & 4 /* limit_key */)::smallint)
      INTO v_tenants, v_ids, v_topics, v_states, v_tos
      FROM (SELECT j.tenant_no, j.id, j.topic_no, j.state, j.flags FROM headgate.jobs j                       -- index: jobs_due
             WHERE j.state IN (2, 3) /* scheduled, retrying */ AND j.run_at >= floor_ AND j.run_at <= v_now
             ORDER BY j.run_at LIMIT n_ FOR UPDATE SKIP LOCKED) AS d;
    -- explain: end
    IF v_ids IS NULL THEN RETURN; END IF;
    IF NOT one_by_one_ THEN
        RETURN QUERY SELECT p.tenant_no, p.topic_no, p.id, p.rank_class, p.rank_at, p.run_at, NULL::text
                       FROM headgate.promote_rows_v1(v_now, v_tenants, v_ids, v_topics, v_states, v_tos) AS p;
        RETURN;
    END IF;
    FOR v_one IN 1 .. cardinality(v_ids) LOOP
        BEGIN
            RETURN QUERY
            SELECT p.tenant_no, p.topic_no, p.id, p.rank_class, p.rank_at, p.run_at, NULL::text
              FROM headgate.promote_rows_v1(v_now, v_tenants[v_one:v_one], v_ids[v_one:v_one], v_topics[v_one:v_one],
                                            v_states[v_one:v_one], v_tos[v_one:v_one]) AS p;
        EXCEPTION WHEN OTHERS THEN
            RETURN QUERY SELECT v_tenants[v_one], v_topics[v_one], v_ids[v_one], NULL::int, NULL::bigint, NULL::timestamptz,
                                SQLSTATE || ' ' || SQLERRM;
        END;
    END LOOP;
END $$;
