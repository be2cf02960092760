-- Pause and resume of a target: (0, 0) everything, (tenant, 0), (tenant, topic). The exclusive lock waits for the claims
-- in flight and keeps out new ones until this transaction ends, so when the call has returned, nothing of the target
-- enters `running` any more, on any instance. Pausing again overwrites the reason and sets paused_at again. Returns
-- paused_at, or NULL when there is no such target.
CREATE FUNCTION headgate.pause_v1(tenant_ int, topic_ int, reason_ text, who_ text, until_ timestamptz)
RETURNS timestamptz LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_at timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(4847423, 1 /* dispatch */);
    INSERT INTO headgate.dispatch_control AS c (tenant_no, topic_no, paused, reason, paused_by, paused_at, paused_until)
    SELECT tenant_, topic_, true, reason_, who_, headgate.clock_v1(), until_
     WHERE tenant_ = 0 OR EXISTS (SELECT FROM headgate.tenants t WHERE t.tenant_no = tenant_ AND topic_ = 0)
        OR EXISTS (SELECT FROM headgate.topics t WHERE t.tenant_no = tenant_ AND t.topic_no = topic_)
    ON CONFLICT (tenant_no, topic_no) DO UPDATE
       SET paused = true, reason = excluded.reason, paused_by = excluded.paused_by, paused_at = excluded.paused_at,
           paused_until = excluded.paused_until
    RETURNING c.paused_at INTO v_at;
    RETURN v_at;
END $$;
