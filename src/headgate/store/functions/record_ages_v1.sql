-- Notes how long the oldest due job of topics has waited, where that is longer than what the present minute, five minutes and
-- hour have. At most n_ topics with pending jobs, by the counts, after the one numbered after_; returns where to continue, 0
-- after the last. Of each topic it reads what the list of topics does: the first entries of an index (oldest_pending_v1).
-- Topics come from state_counts_pending, whatever the statistics say: every server looks every five seconds.
--
-- A pause is a decision, not a delay: what waits in a paused topic is noted apart. Sorted: two instances wait for each other
-- rather than deadlock.
CREATE FUNCTION headgate.record_ages_v1(after_ int, n_ int) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_now    timestamptz := headgate.clock_v1();
    v_topics int[] := ARRAY(SELECT c.topic_no FROM headgate.state_counts c
                             WHERE c.state = 0 /* pending */ AND c.n > 0 AND c.topic_no > after_
                             ORDER BY c.topic_no LIMIT n_);
BEGIN
    INSERT INTO headgate.flow_buckets AS b (tenant_no, topic_no, seconds, at, oldest_ms, oldest_paused_ms)
    SELECT a.tenant_no, k.topic_no, w.seconds, date_bin(w.seconds * interval '1 second', v_now, timestamptz 'epoch'),
           max(a.ms) FILTER (WHERE NOT a.paused), max(a.ms) FILTER (WHERE a.paused)
      FROM (SELECT t.tenant_no, t.topic_no, greatest(0, extract(epoch FROM v_now - o.since) * 1000)::bigint AS ms,
                   EXISTS (SELECT FROM headgate.dispatch_control c
                            WHERE c.tenant_no IN (0, t.tenant_no) AND c.topic_no IN (0, t.topic_no) AND c.paused
                              AND (c.paused_until IS NULL OR c.paused_until > v_now)) AS paused
              FROM headgate.oldest_pending_v1(v_topics) AS o
              JOIN headgate.topics t ON t.topic_no = o.topic_no) AS a
     CROSS JOIN LATERAL (VALUES (a.topic_no), (0)) AS k(topic_no)
     CROSS JOIN (VALUES (60), (300), (3600)) AS w(seconds)
     GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    ON CONFLICT (tenant_no, topic_no, seconds, at) DO UPDATE
       SET oldest_ms = greatest(b.oldest_ms, excluded.oldest_ms),
           oldest_paused_ms = greatest(b.oldest_paused_ms, excluded.oldest_paused_ms)
     WHERE excluded.oldest_ms > coalesce(b.oldest_ms, -1)
        OR excluded.oldest_paused_ms > coalesce(b.oldest_paused_ms, -1);
    RETURN CASE WHEN cardinality(v_topics) = n_ THEN v_topics[n_] ELSE 0 END;
END $$;
