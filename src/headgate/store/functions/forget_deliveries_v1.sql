-- Removes up to n_ deliveries with their attempts: those that ended longer ago than keep_, and those of endpoints that were
-- deleted, have expired, or have been disabled for that long. Then the deleted endpoints that have none left. An endpoint
-- that fails is disabled with more than backlog_ waiting deliveries, one that succeeds but is too slow with more than slow_:
-- their rows must not fill the disk.
CREATE FUNCTION headgate.forget_deliveries_v1(keep_ interval, n_ int, backlog_ int, slow_ int) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
DECLARE
    v_now   timestamptz := headgate.clock_v1();
    v_gone  bigint[];
BEGIN
    UPDATE headgate.webhooks w
       SET deleted = true, enabled = false, disabled_at = coalesce(w.disabled_at, v_now), disabled_reason = 'expired', look_at = NULL
     WHERE w.expires_at <= v_now AND NOT w.deleted;
    WITH full_ AS (
        UPDATE headgate.webhooks w
           SET enabled = false, disabled_at = v_now, look_at = NULL, changed_at = v_now, changed_by = 'headgate',
               disabled_reason = CASE WHEN w.failing_since IS NULL
                                      THEN format('more than %s deliveries waited for it: it answers too slowly', slow_)
                                      ELSE format('more than %s deliveries waited for it', backlog_) END,
               version = w.version + 1
         WHERE w.enabled
           AND EXISTS (SELECT FROM headgate.webhook_deliveries d                            -- index: webhook_deliveries_due
                        WHERE d.webhook_no = w.webhook_no AND d.next_at IS NOT NULL
                       OFFSET CASE WHEN w.failing_since IS NULL THEN slow_ ELSE backlog_ END LIMIT 1)
        RETURNING w.tenant_no, w.id, w.disabled_reason)
    INSERT INTO headgate.audit (at, tenant_no, actor, verb, target, reason)
    SELECT v_now, f.tenant_no, 'headgate', 'disable_webhook', 'webhook ' || f.id, f.disabled_reason FROM full_ f;
    -- Locked without waiting: the record of an attempt holds its delivery, and may wait for the endpoint's row.
    v_gone := ARRAY(
        SELECT d.delivery_no FROM headgate.webhook_deliveries d                             -- index: webhook_deliveries_ended
         WHERE d.ended_at <= v_now - keep_ ORDER BY d.ended_at LIMIT n_ FOR UPDATE SKIP LOCKED);
    v_gone := v_gone || ARRAY(
        SELECT d.delivery_no FROM headgate.webhooks w
         CROSS JOIN LATERAL (SELECT x.delivery_no FROM headgate.webhook_deliveries x        -- index: webhook_deliveries_listed
                              WHERE x.webhook_no = w.webhook_no AND x.delivery_no <> ALL (v_gone)
                              LIMIT n_ FOR UPDATE SKIP LOCKED) AS d
         WHERE NOT w.enabled AND (w.deleted OR w.disabled_at <= v_now - keep_)
         LIMIT n_ - cardinality(v_gone));
    IF v_gone <> '{}' THEN
        DELETE FROM headgate.webhook_deliveries d WHERE d.delivery_no = ANY (v_gone);
        DELETE FROM headgate.webhook_attempts l WHERE l.delivery_no = ANY (v_gone);      -- after: see record_delivery_v1
    END IF;
    DELETE FROM headgate.webhook_ready r USING headgate.webhooks w
     WHERE w.deleted AND r.tenant_no = w.tenant_no AND r.subscription = 'webhook ' || w.webhook_no;
    DELETE FROM headgate.webhook_ready r WHERE r.sent_at <= v_now - keep_;      -- of groups that were removed; else sent again
    -- An event of a transaction that has read the endpoint before it was deleted may still come: an hour later none does.
    DELETE FROM headgate.webhooks w
     WHERE w.deleted AND w.disabled_at <= v_now - interval '1 hour'
       AND NOT EXISTS (SELECT FROM headgate.webhook_deliveries d WHERE d.webhook_no = w.webhook_no);
    RETURN cardinality(v_gone);
END $$;
