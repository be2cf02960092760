-- Notes queue.ready for topics that have got pending jobs: when a topic was empty, at most once in the endpoint's interval;
-- and again every minute while jobs are pending, since a topic may be emptied and filled between two looks. Looks at up to
-- n_ endpoints whose time has come, and returns how many it looked at. Any instance may do it at any time: an endpoint that
-- another one looks at is left out, and of two that look at one group, the row of its topic lets one write.
CREATE FUNCTION headgate.webhook_ready_v1(n_ int) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now   timestamptz := headgate.clock_v1();
    v_began timestamptz := clock_timestamp();
    v_due   int[];
BEGIN
    SELECT array_agg(w.webhook_no) INTO v_due
      FROM (SELECT w.webhook_no FROM headgate.webhooks w                                  -- index: webhooks_looking
             WHERE w.enabled AND w.look_at <= v_now ORDER BY w.look_at LIMIT n_ FOR NO KEY UPDATE SKIP LOCKED) AS w;
    IF v_due IS NULL THEN RETURN 0; END IF;
    WITH due AS MATERIALIZED (
        SELECT w.webhook_no, w.tenant_no, w.mode, w.group_name, w.patterns, w.min_interval_ms,
               CASE w.mode WHEN 0 /* fanout */ THEN 'webhook ' || w.webhook_no WHEN 1 /* group */ THEN 'group ' || w.group_name
                           ELSE 'hash ' || w.group_name END AS subscription
          FROM headgate.webhooks w
         WHERE w.webhook_no = ANY (v_due) AND (w.expires_at IS NULL OR w.expires_at > v_now)),
    state AS MATERIALIZED (
        SELECT t.tenant_no, t.topic_no, t.name, d.subscription, min(d.min_interval_ms) AS interval_ms,
               EXISTS (SELECT FROM headgate.jobs j WHERE j.topic_no = t.topic_no AND j.state = 0 /* pending */) AS pending
          FROM due d JOIN headgate.topics t ON t.tenant_no = d.tenant_no AND t.name LIKE ANY (d.patterns)
         GROUP BY 1, 2, 3, 4),
    -- Topics that are ready and those that have become empty, in the order of their key: members of a group share these
    -- rows, and two that lock them in different orders would deadlock.
    changed AS (
        INSERT INTO headgate.webhook_ready AS r (tenant_no, subscription, topic_no, ready, interval_ms, sent_at)
        SELECT s.tenant_no, s.subscription, s.topic_no, s.pending, s.interval_ms, v_now
          FROM state s
         WHERE s.pending OR EXISTS (
               SELECT FROM headgate.webhook_ready o
                WHERE o.tenant_no = s.tenant_no AND o.subscription = s.subscription AND o.topic_no = s.topic_no AND o.ready)
         ORDER BY 1, 2, 3
        ON CONFLICT (tenant_no, subscription, topic_no) DO UPDATE
           SET ready = excluded.ready, interval_ms = excluded.interval_ms,
               sent_at = CASE WHEN excluded.ready THEN excluded.sent_at ELSE r.sent_at END
         WHERE CASE WHEN excluded.ready
                    THEN r.sent_at <= excluded.sent_at - excluded.interval_ms * interval '1 ms'
                         AND (NOT r.ready OR r.sent_at <= excluded.sent_at - interval '1 minute')
                    ELSE r.ready END
        RETURNING r.tenant_no, r.subscription, r.topic_no, r.ready),
    chosen AS (
        SELECT s.tenant_no, s.topic_no, s.name, m.webhook_no
          FROM (SELECT o.tenant_no, o.topic_no, o.subscription, s.name,
                       row_number() OVER (PARTITION BY o.tenant_no, o.subscription ORDER BY o.topic_no) AS turn
                  FROM changed o JOIN state s ON s.tenant_no = o.tenant_no AND s.subscription = o.subscription
                                          AND s.topic_no = o.topic_no
                 WHERE o.ready) AS s
         CROSS JOIN LATERAL (
               SELECT w.webhook_no, w.mode,
                      row_number() OVER (ORDER BY CASE w.mode WHEN 2 /* hash */ THEN hashtextextended(w.id::text, s.topic_no) END,
                                                  w.ready_at NULLS FIRST, w.webhook_no) AS place,
                      count(*) OVER () AS members
                 FROM headgate.webhooks w
                WHERE w.tenant_no = s.tenant_no AND w.enabled AND w.events & 8 /* queue.ready */ <> 0
                  AND (w.expires_at IS NULL OR w.expires_at > v_now) AND s.name LIKE ANY (w.patterns)
                  AND s.subscription = CASE w.mode WHEN 0 /* fanout */ THEN 'webhook ' || w.webhook_no
                                                   WHEN 1 /* group */ THEN 'group ' || w.group_name
                                                   ELSE 'hash ' || w.group_name END) AS m
         WHERE m.place = CASE m.mode WHEN 1 /* group */ THEN 1 + (s.turn - 1) % m.members ELSE 1 END),
    noted AS (
        INSERT INTO headgate.webhook_deliveries (tenant_no, webhook_no, event, at, topic_no, next_at, data)
        SELECT c.tenant_no, c.webhook_no, 8 /* queue.ready */, v_now, c.topic_no, v_now, jsonb_build_object('topic', c.name)
          FROM chosen c)
    UPDATE headgate.webhooks w
       SET ready_at = CASE WHEN w.webhook_no IN (SELECT c.webhook_no FROM chosen c) THEN v_now ELSE w.ready_at END,
           -- Once a second, and less often if it takes long: thousands of topics must not keep a connection busy.
           look_at = v_now + greatest(interval '1 second', 20 * (clock_timestamp() - v_began))
     WHERE w.webhook_no = ANY (v_due);
    RETURN cardinality(v_due);
END $$;
