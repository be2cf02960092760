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
    minutes AS MATERIALIZED (
        SELECT t.tenant_no, t.topic_no, date_trunc('minute', t.at) AS at, sum(f.submitted) AS submitted,
               sum(f.started) AS started, sum(f.completed) AS completed, sum(f.retried) AS retried,
               sum(f.failed) AS failed, sum(f.dead) AS dead, sum(f.cancelled) AS cancelled,
               sum(f.pending_change) AS pending_change, sum(t.n) AS changes
          FROM taken t CROSS JOIN LATERAL headgate.flow_columns_v1(t.from_state, t.to_state, t.n) AS f
         GROUP BY 1, 2, 3),
    buckets AS (
        INSERT INTO headgate.flow_buckets AS b (tenant_no, topic_no, seconds, at, submitted, started, completed, retried,
                                                failed, dead, cancelled, pending_change, changes)
        SELECT m.tenant_no, k.topic_no, w.seconds, date_bin(w.seconds * interval '1 second', m.at, timestamptz 'epoch'),
               sum(m.submitted), sum(m.started), sum(m.completed), sum(m.retried), sum(m.failed), sum(m.dead),
               sum(m.cancelled), sum(m.pending_change), sum(m.changes)
          FROM minutes m
         CROSS JOIN LATERAL (VALUES (m.topic_no), (0)) AS k(topic_no)
         CROSS JOIN (VALUES (60), (300), (3600)) AS w(seconds)
         GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
        ON CONFLICT (tenant_no, topic_no, seconds, at) DO UPDATE
           SET submitted = b.submitted + excluded.submitted, started = b.started + excluded.started,
               completed = b.completed + excluded.completed, retried = b.retried + excluded.retried,
               failed = b.failed + excluded.failed, dead = b.dead + excluded.dead,
               cancelled = b.cancelled + excluded.cancelled,
               pending_change = b.pending_change + excluded.pending_change, changes = b.changes + excluded.changes)
    SELECT count(*) INTO v_folded FROM taken;
    RETURN v_folded;
END $$;
