-- Adds the histograms of one instance to those of the present minute, five minutes and hour. `pickups_` and `runs_` have
-- width_ counts for each of the topics, one after another. Sorted: two instances wait for each other rather than deadlock.
CREATE FUNCTION headgate.record_latencies_v1(tenants_ int[], topics_ int[], width_ int, pickups_ bigint[], runs_ bigint[])
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_now timestamptz := headgate.clock_v1();
BEGIN
    INSERT INTO headgate.latency_buckets AS b (tenant_no, topic_no, seconds, at, pickup, run)
    SELECT t.tenant_no, t.topic_no, w.seconds, date_bin(w.seconds * interval '1 second', v_now, timestamptz 'epoch'),
           pickups_[(t.n - 1) * width_ + 1 : t.n * width_], runs_[(t.n - 1) * width_ + 1 : t.n * width_]
      FROM unnest(tenants_, topics_) WITH ORDINALITY AS t(tenant_no, topic_no, n)
     CROSS JOIN (VALUES (60), (300), (3600)) AS w(seconds)
     ORDER BY 1, 2, 3, 4
    ON CONFLICT (tenant_no, topic_no, seconds, at) DO UPDATE
       SET pickup = ARRAY(SELECT u.mine + u.theirs FROM unnest(b.pickup, excluded.pickup)
                            WITH ORDINALITY AS u(mine, theirs, n) ORDER BY u.n),
           run = ARRAY(SELECT u.mine + u.theirs FROM unnest(b.run, excluded.run)
                         WITH ORDINALITY AS u(mine, theirs, n) ORDER BY u.n);
END $$;
