-- The ords for which their topic has no capacity in its backlog: whatever waits, due or not. Counted from the totals and the
-- deltas that are not folded yet, in one snapshot: exact but for flushes in flight. What was submitted before is no news,
-- and is let through to be answered as such.
CREATE FUNCTION headgate.over_backlog_v1(tenant_nos_ int[], ids_ uuid[], topic_nos_ int[], key_ords_ int[], keys_ text[])
RETURNS TABLE (ords int[], most bigint, waiting bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_one  record;
    v_now  timestamptz := headgate.clock_v1();
BEGIN
    FOR v_one IN
        SELECT l.topic_no, l.tenant_no, l.max_backlog, c.n,
               (SELECT array_agg(u.o::int) FROM unnest(topic_nos_) WITH ORDINALITY AS u(topic_no, o)
                 WHERE u.topic_no = l.topic_no) AS ords
          FROM headgate.topic_limits l
         CROSS JOIN LATERAL (
               SELECT greatest(0, coalesce((SELECT sum(s.n) FROM headgate.state_counts s
                                 WHERE s.tenant_no = l.tenant_no AND s.topic_no = l.topic_no
                                   AND s.state IN (0, 2, 3, 4) /* pending, scheduled, retrying, blocked */), 0)
                      + coalesce((SELECT sum(CASE WHEN d.to_state IN (0, 2, 3, 4) /* the same */ THEN d.n ELSE 0 END
                                             - CASE WHEN d.from_state IN (0, 2, 3, 4) /* the same */ THEN d.n ELSE 0 END)
                                    FROM headgate.flow_deltas d WHERE d.topic_no = l.topic_no), 0)) AS n) AS c
         WHERE l.max_backlog IS NOT NULL AND l.topic_no = ANY (topic_nos_)
    LOOP
        CONTINUE WHEN v_one.n + cardinality(v_one.ords) <= v_one.max_backlog;
        RETURN QUERY
        SELECT array_agg(f.o) FILTER (WHERE f.nth > v_one.max_backlog - v_one.n), v_one.max_backlog, v_one.n::bigint
          FROM (SELECT o.o, row_number() OVER (ORDER BY o.o) AS nth FROM unnest(v_one.ords) AS o(o)
                 WHERE NOT EXISTS (SELECT FROM headgate.jobs j WHERE j.tenant_no = v_one.tenant_no AND j.id = ids_[o.o])
                   AND NOT EXISTS (SELECT FROM headgate.archive a WHERE a.tenant_no = v_one.tenant_no AND a.id = ids_[o.o])
                   AND NOT EXISTS (SELECT FROM unnest(key_ords_, keys_) AS k(o, key)
                                     JOIN headgate.idempotency_keys i
                                       ON i.tenant_no = v_one.tenant_no AND i.key = k.key AND i.topic_no = v_one.topic_no
                                      AND i.expires_at > v_now
                                    WHERE k.o = o.o)) AS f
        HAVING count(*) FILTER (WHERE f.nth > v_one.max_backlog - v_one.n) > 0;
    END LOOP;
END $$;
