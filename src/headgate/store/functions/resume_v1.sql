-- Harmless when nothing is paused. Clears the reason, keeps paused_at. Returns whether the target was paused until now; a
-- pause that has ended by itself was not, though its row is cleared as well.
CREATE FUNCTION headgate.resume_v1(tenant_ int, topic_ int) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_held boolean;
BEGIN
    SELECT c.paused_until IS NULL OR c.paused_until > headgate.clock_v1() INTO v_held FROM headgate.dispatch_control c
     WHERE c.tenant_no = tenant_ AND c.topic_no = topic_ AND c.paused FOR UPDATE;
    IF NOT FOUND THEN RETURN false; END IF;
    UPDATE headgate.dispatch_control c SET paused = false, reason = '', paused_by = '', paused_until = NULL
     WHERE c.tenant_no = tenant_ AND c.topic_no = topic_;
    RETURN v_held;
END $$;
