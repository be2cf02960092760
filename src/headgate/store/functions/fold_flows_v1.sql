-- Folds up to n_ delta rows into the counts people read. Any instance may do it at any time: deltas that another one is
-- folding are skipped, and the sorted upserts make two folders wait for each other rather than deadlock.
CREATE FUNCTION headgate.fold_flows_v1(n_ int) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_folded int;
BEGIN
    WITH taken AS MATERIALIZED (
        DELETE FROM headgate.flow_deltas d
         WHERE d.ctid = ANY (ARRAY(SELECT x.ctid FROM headgate.flow_deltas x LIMIT n_ FOR UPDATE SKIP LOCKED))
        RETURNING d.tenant_no, d.topic_no, d.from_state, d.to_state, d.n, d.at),
    stocks AS (
        INSERT INTO headgate.state_counts AS c (tenant_no, topic_no, state, n)
        SELECT s.tenant_no, s.topic_no, s.state, sum(s.n)
          FROM (SELECT tenant_no, topic_no, to_state AS state, n FROM taken
                UNION ALL SELECT tenant_no, topic_no, from_state, -n FROM taken) AS s
         WHERE s.state >= 0 /* pending */ GROUP BY 1, 2, 3 HAVING sum(s.n) <> 0 ORDER BY 1, 2, 3
        ON CONFLICT (tenant_no, topic_no, state) DO UPDATE SET n = c.n + excluded.n),
    minutes AS (
        INSERT INTO headgate.flow_minutes AS m (minute, tenant_no, topic_no, from_state, to_state, n)
        SELECT date_trunc('minute', t.at), t.tenant_no, t.topic_no, t.from_state, t.to_state, sum(t.n)
          FROM taken t GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
        ON CONFLICT (minute, tenant_no, topic_no, from_state, to_state) DO UPDATE SET n = m.n + excluded.n)
    SELECT count(*) INTO v_folded FROM taken;
    RETURN v_folded;
END $$;
