-- Harmless when nothing is paused. Clears the reason, keeps paused_at. Returns whether the target was paused until now; a
-- pause that has ended by itself was not, though its row is cleared as well. `since_` ends only the pause that began then:
-- NULL means that another one is in force, and nothing was changed. The row lock makes a pause that is being written wait,
-- or this wait for it: the comparison sees the last one.
CREATE FUNCTION headgate.resume_v1(tenant_ int, topic_ int, since_ timestamptz) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_held  boolean;
    v_since timestamptz;
BEGIN
    SELECT c.paused_until IS NULL OR c.paused_until > headgate.clock_v1(), c.paused_at INTO v_held, v_since
      FROM headgate.dispatch_control c
     WHERE c.tenant_no = tenant_ AND c.topic_no = topic_ AND c.paused FOR UPDATE;
    IF NOT FOUND THEN RETURN false; END IF;
    IF v_held AND v_since <> since_ THEN RETURN NULL; END IF;
    UPDATE headgate.dispatch_control c SET paused = false, reason = '', paused_by = '', paused_until = NULL
     WHERE c.tenant_no = tenant_ AND c.topic_no = topic_;
    RETURN v_held;
END $$;
