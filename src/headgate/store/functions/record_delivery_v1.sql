-- Records one attempt, and what it means: outcome_ 0 delivered, 1 tried again after wait_ms_, 2 failed for good, 3 the endpoint
-- wants no more. The log gets its entry in any case; the delivery changes only if attempt_ is its newest one, since after a
-- expired lease another instance has begun the next. Returns whether it did, and why the endpoint was disabled, if it was.
-- An endpoint that fails for disable_after_ms_ is disabled by a delivery on its third try or later: two failures with nothing
-- sent between them say little. A ping tells nothing about that: it is a request of an operator.
CREATE FUNCTION headgate.record_delivery_v1(
    delivery_ bigint, attempt_ int, outcome_ int, wait_ms_ bigint, status_ int, duration_ms_ int, response_ text, error_ text,
    disable_after_ms_ bigint)
RETURNS TABLE (recorded boolean, disabled text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_now      timestamptz := headgate.clock_v1();
    v_webhook  int;
    v_event    smallint;
    v_tried    int;
    v_hook     record;
    v_reason   text;
BEGIN
    -- Locked first, as by forget_deliveries_v1: no attempt stays behind without its delivery.
    PERFORM FROM headgate.webhook_deliveries d WHERE d.delivery_no = delivery_ FOR UPDATE;
    IF NOT FOUND THEN RETURN QUERY SELECT false, NULL::text; RETURN; END IF;
    INSERT INTO headgate.webhook_attempts (delivery_no, attempt, at, duration_ms, status, response, error)
    VALUES (delivery_, attempt_, v_now - duration_ms_ * interval '1 ms', duration_ms_, status_, response_, error_)
    ON CONFLICT (delivery_no, attempt) DO NOTHING;
    DELETE FROM headgate.webhook_attempts l WHERE l.delivery_no = delivery_ AND l.attempt <= attempt_ - 50;
    UPDATE headgate.webhook_deliveries d
       SET state = CASE outcome_ WHEN 0 THEN 2 /* delivered */ WHEN 1 THEN 0 /* waiting */ ELSE 3 /* failed */ END,
           next_at = CASE WHEN outcome_ = 1 THEN v_now + wait_ms_ * interval '1 ms' END,
           ended_at = CASE WHEN outcome_ <> 1 THEN v_now END, status = status_, error = error_
     WHERE d.delivery_no = delivery_ AND d.attempts = attempt_ AND d.state = 1 /* sending */
    RETURNING d.webhook_no, d.event, d.attempts - d.round_from INTO v_webhook, v_event, v_tried;
    IF NOT FOUND THEN RETURN QUERY SELECT false, NULL::text; RETURN; END IF;
    IF v_event = 16 /* ping */ AND outcome_ <> 3 THEN
        RETURN QUERY SELECT true, NULL::text;
        RETURN;
    END IF;
    IF outcome_ = 0 THEN
        UPDATE headgate.webhooks w SET failing_since = NULL WHERE w.webhook_no = v_webhook AND w.failing_since IS NOT NULL;
        RETURN QUERY SELECT true, NULL::text;
        RETURN;
    END IF;
    SELECT w.tenant_no, w.id, w.enabled, w.failing_since INTO v_hook FROM headgate.webhooks w WHERE w.webhook_no = v_webhook;
    IF outcome_ = 3 THEN
        v_reason := 'the endpoint answered 410 Gone';
    ELSIF v_tried >= 3 AND v_hook.failing_since <= v_now - disable_after_ms_ * interval '1 ms' THEN
        v_reason := 'no delivery has succeeded since ' || to_char(v_hook.failing_since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') || ' UTC';
    END IF;
    IF v_reason IS NOT NULL AND v_hook.enabled THEN
        UPDATE headgate.webhooks w
           SET enabled = false, disabled_at = v_now, disabled_reason = v_reason, look_at = NULL, changed_at = v_now,
               changed_by = 'headgate', version = w.version + 1
         WHERE w.webhook_no = v_webhook AND w.enabled;
        IF FOUND THEN
            INSERT INTO headgate.audit (at, tenant_no, actor, verb, target, reason)
            VALUES (v_now, v_hook.tenant_no, 'headgate', 'disable_webhook', 'webhook ' || v_hook.id, v_reason);
            RETURN QUERY SELECT true, v_reason;
            RETURN;
        END IF;
    ELSIF v_hook.failing_since IS NULL THEN
        UPDATE headgate.webhooks w SET failing_since = v_now WHERE w.webhook_no = v_webhook AND w.failing_since IS NULL;
    END IF;
    RETURN QUERY SELECT true, NULL::text;
END $$;
