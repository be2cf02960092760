-- The ords that a quota of their tenant has no capacity for: what waits over all topics (max_backlog), and the bytes that were
-- measured last (measure_stored_v1). As over_backlog_v1: exact but for flushes in flight, and what was submitted before is let
-- through to be answered as such. And those whose payload is over max_payload_bytes, a row each; payloads_ NULL: none is.
-- kind: 1 max_backlog, 2 max_stored_bytes, 3 max_payload_bytes. Called for tenants with such a quota only.
CREATE FUNCTION headgate.over_quota_v1(
    tenant_nos_ int[], ids_ uuid[], topic_nos_ int[], key_ords_ int[], keys_ text[], payloads_ bytea[])
RETURNS TABLE (ords int[], most bigint, used bigint, kind bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_one   record;
    v_sizes int[];     -- of the payloads
    v_large int[];     -- ords whose payload is too large
    v_new   int[];     -- ords that were not submitted before
    v_free  bigint;
    v_now   timestamptz := headgate.clock_v1();
BEGIN
    FOR v_one IN
        SELECT t.tenant_no, t.max_backlog, t.max_stored_bytes, t.stored_bytes, t.max_payload_bytes,
               (SELECT array_agg(u.o::int) FROM unnest(tenant_nos_) WITH ORDINALITY AS u(tenant_no, o)
                 WHERE u.tenant_no = t.tenant_no) AS ords,
               CASE WHEN t.max_backlog IS NOT NULL THEN greatest(0,
                    coalesce((SELECT sum(s.n) FROM headgate.state_counts s WHERE s.tenant_no = t.tenant_no
                                 AND s.state IN (0, 2, 3, 4) /* pending, scheduled, retrying, blocked */), 0)
                    + coalesce((SELECT sum(CASE WHEN d.to_state IN (0, 2, 3, 4) /* the same */ THEN d.n ELSE 0 END
                                           - CASE WHEN d.from_state IN (0, 2, 3, 4) /* the same */ THEN d.n ELSE 0 END)
                                  FROM headgate.flow_deltas d WHERE d.tenant_no = t.tenant_no), 0)) END AS waiting
          FROM headgate.tenants t
         WHERE t.bounded AND t.tenant_no = ANY (tenant_nos_)
    LOOP
        v_free := CASE WHEN v_one.stored_bytes >= v_one.max_stored_bytes THEN 0
                       WHEN v_one.max_backlog IS NOT NULL THEN greatest(0, v_one.max_backlog - v_one.waiting) END;
        IF v_one.max_payload_bytes IS NOT NULL AND v_sizes IS NULL THEN      -- once: elements of payloads_ lie at no fixed place
            v_sizes := ARRAY(SELECT coalesce(octet_length(p.payload), 0)
                               FROM unnest(payloads_) WITH ORDINALITY AS p(payload, n) ORDER BY p.n);
        END IF;
        v_large := ARRAY(SELECT o FROM unnest(v_one.ords) AS o WHERE v_sizes[o] > v_one.max_payload_bytes);
        CONTINUE WHEN (v_free IS NULL OR cardinality(v_one.ords) <= v_free) AND cardinality(v_large) = 0;
        v_new := ARRAY(
            SELECT o.o FROM unnest(v_one.ords) AS o(o)
             WHERE NOT EXISTS (SELECT FROM headgate.jobs j WHERE j.tenant_no = v_one.tenant_no AND j.id = ids_[o.o])
               AND NOT EXISTS (SELECT FROM headgate.archive a WHERE a.tenant_no = v_one.tenant_no AND a.id = ids_[o.o])
               AND NOT EXISTS (SELECT FROM unnest(key_ords_, keys_) AS k(o, key)
                                 JOIN headgate.idempotency_keys i
                                   ON i.tenant_no = v_one.tenant_no AND i.key = k.key AND i.topic_no = topic_nos_[k.o]
                                  AND i.expires_at > v_now
                                WHERE k.o = o.o)
             ORDER BY o.o);
        IF cardinality(v_large) > 0 THEN
            RETURN QUERY SELECT ARRAY[o], v_one.max_payload_bytes::bigint, v_sizes[o]::bigint, 3::bigint
                           FROM unnest(v_new) AS o WHERE o = ANY (v_large);
            v_new := ARRAY(SELECT o FROM unnest(v_new) AS o WHERE o <> ALL (v_large) ORDER BY o);
        END IF;
        CONTINUE WHEN v_free IS NULL OR cardinality(v_new) <= v_free;
        RETURN QUERY
        SELECT v_new[v_free::int + 1:],
               CASE WHEN v_one.stored_bytes >= v_one.max_stored_bytes THEN v_one.max_stored_bytes ELSE v_one.max_backlog END,
               CASE WHEN v_one.stored_bytes >= v_one.max_stored_bytes THEN v_one.stored_bytes ELSE v_one.waiting::bigint END,
               CASE WHEN v_one.stored_bytes >= v_one.max_stored_bytes THEN 2 ELSE 1 END::bigint;
    END LOOP;
END $$;
