-- Claims up to n_ deliveries that are due, for lease_ms_: until then no other instance sends them, afterwards any may. The
-- endpoint's row is locked meanwhile, so that all instances together keep the bound per endpoint. Endpoints take turns, the
-- one that was served longest ago first; one that fails gets one request at a time, and all failing ones together no
-- more than failing_n_: a dead endpoint does not delay the others.
CREATE FUNCTION headgate.claim_deliveries_v1(n_ int, failing_n_ int, per_webhook_ int, lease_ms_ int, result_max_ int)
RETURNS TABLE (delivery_no bigint, id uuid, webhook_no int, event smallint, at timestamptz, data jsonb, attempt int, tried int,
               url text, secrets text[], failing boolean, with_result boolean, result bytea)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now  timestamptz := headgate.clock_v1();
    v_due  int[];
BEGIN
    -- Only endpoints that get something now: others would take the places of those behind them.
    SELECT array_agg(w.webhook_no) INTO v_due
      FROM (VALUES (true, least(n_, failing_n_), 1), (false, n_, per_webhook_)) AS k (failing, n, bound)
     CROSS JOIN LATERAL (
           SELECT w.webhook_no FROM headgate.webhooks w
            WHERE w.enabled AND (w.expires_at IS NULL OR w.expires_at > v_now)
              AND (w.failing_since IS NOT NULL) = k.failing
              AND EXISTS (SELECT FROM headgate.webhook_deliveries d                        -- index: webhook_deliveries_due
                           WHERE d.webhook_no = w.webhook_no AND d.next_at <= v_now)
              AND k.bound > (SELECT count(*) FROM headgate.webhook_deliveries d            -- index: webhook_deliveries_sending
                              WHERE d.webhook_no = w.webhook_no AND d.state = 1 /* sending */ AND d.next_at > v_now)
            ORDER BY w.served_at NULLS FIRST LIMIT k.n FOR NO KEY UPDATE SKIP LOCKED) AS w;
    IF v_due IS NULL THEN RETURN; END IF;
    RETURN QUERY
    WITH free AS MATERIALIZED (
        SELECT w.webhook_no, w.served_at,
               CASE WHEN w.failing_since IS NULL THEN per_webhook_ ELSE 1 END
                   - (SELECT count(*) FROM headgate.webhook_deliveries d                   -- index: webhook_deliveries_sending
                       WHERE d.webhook_no = w.webhook_no AND d.state = 1 /* sending */ AND d.next_at > v_now) AS n
          FROM headgate.webhooks w WHERE w.webhook_no = ANY (v_due)),
    ranked AS MATERIALIZED (
        SELECT d.delivery_no, d.place, f.served_at
          FROM free f
         CROSS JOIN LATERAL (
               SELECT x.delivery_no, row_number() OVER (ORDER BY x.next_at) AS place
                 FROM (SELECT d.delivery_no, d.next_at FROM headgate.webhook_deliveries d
                        WHERE d.webhook_no = f.webhook_no AND d.next_at <= v_now
                        ORDER BY d.next_at LIMIT greatest(f.n, 0) FOR UPDATE SKIP LOCKED) AS x) AS d),
    chosen AS MATERIALIZED (
        SELECT r.delivery_no FROM ranked r ORDER BY r.place, r.served_at NULLS FIRST LIMIT n_),
    taken AS (
        UPDATE headgate.webhook_deliveries d
           SET state = 1 /* sending */, attempts = d.attempts + 1, next_at = v_now + lease_ms_ * interval '1 ms'
         WHERE d.delivery_no = ANY (ARRAY(SELECT c.delivery_no FROM chosen c))
        RETURNING d.delivery_no, d.id, d.webhook_no, d.tenant_no, d.event, d.at, d.job_id, d.data, d.attempts, d.round_from),
    served AS (
        UPDATE headgate.webhooks w SET served_at = v_now WHERE w.webhook_no = ANY (ARRAY(SELECT k.webhook_no FROM taken k)))
    SELECT k.delivery_no, k.id, k.webhook_no, k.event, k.at, k.data, k.attempts, k.attempts - k.round_from, w.url,
           ARRAY(SELECT s.secret FROM headgate.webhook_secrets s
                  WHERE s.webhook_no = k.webhook_no AND (s.expires_at IS NULL OR s.expires_at > v_now)
                  ORDER BY s.expires_at DESC NULLS FIRST, s.created_at DESC),
           w.failing_since IS NOT NULL, w.include_result,
           CASE WHEN w.include_result AND k.event = 1 /* job.completed */ THEN
               (SELECT coalesce(substr(a.result, 1, result_max_ + 1), '') FROM headgate.archive a   -- one more: too large
                 WHERE a.tenant_no = k.tenant_no AND a.id = k.job_id AND a.finished_at = k.at) END
      FROM taken k JOIN headgate.webhooks w ON w.webhook_no = k.webhook_no;
END $$;
