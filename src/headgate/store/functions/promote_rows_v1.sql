-- Makes these jobs claimable, or puts them into the lines of their keys: locked by the caller. They are given by parallel arrays.
CREATE FUNCTION headgate.promote_rows_v1(
    now_ timestamptz, tenants_ int[], ids_ uuid[], topics_ int[], states_ smallint[], tos_ smallint[])
RETURNS TABLE (tenant_no int, topic_no int, id uuid, rank_class int, rank_at bigint, run_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE v_one int;
BEGIN
    INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
    SELECT u.tenant_no, u.topic_no, u.state, u.goes, count(*), now_
      FROM unnest(tenants_, topics_, states_, tos_) AS u(tenant_no, topic_no, state, goes) GROUP BY 1, 2, 3, 4;
    RETURN QUERY
    UPDATE headgate.jobs j SET state = j.flags & 4 /* limit_key, which makes it 4, blocked; else 0, pending */
     WHERE j.tenant_no = ANY (ARRAY(SELECT DISTINCT t FROM unnest(tenants_) AS t)) AND j.id = ANY (ids_)
       -- Locked by us, so still as seen; the pair is checked because one id may live under two tenants.
       AND ((j.tenant_no, j.id) IN (SELECT u.t, u.i FROM unnest(tenants_, ids_) AS u(t, i))) IS TRUE
    RETURNING j.tenant_no, j.topic_no, j.id, j.rank_class, j.rank_at, j.run_at;
    FOR v_one IN SELECT DISTINCT t FROM unnest(tenants_) AS t ORDER BY t LOOP
        PERFORM headgate.arrived_v1(v_one, ids_);
    END LOOP;
    IF 4 /* blocked */ = ANY (tos_) THEN
        FOR v_one IN SELECT DISTINCT u.t FROM unnest(tenants_, tos_) AS u(t, goes) WHERE u.goes = 4 /* blocked */ ORDER BY 1 LOOP
            PERFORM headgate.line_up_v1(v_one, (SELECT array_agg(u.i) FROM unnest(tenants_, ids_, tos_) AS u(t, i, goes)
                                                 WHERE u.t = v_one AND u.goes = 4 /* blocked */));
        END LOOP;
    END IF;
END $$;
