-- Notes the ends of jobs for the endpoints that ask for them, in the transaction that ends the jobs: either both are
-- committed or neither. True if there is something to deliver. Called only if the tenant has an endpoint. ids_: jobs of one
-- tenant that have just been archived, with at_ as their finished_at; others are left out. topics_: theirs, or NULL.
CREATE FUNCTION headgate.webhook_ended_v1(tenant_ int, topics_ int[], ids_ uuid[], at_ timestamptz) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off
SET enable_nestloop = on SET jit = off AS $$
BEGIN
    -- Topics are few, jobs are many: nothing is read of jobs whose topics no endpoint is for.
    IF topics_ IS NOT NULL AND NOT EXISTS (
           SELECT FROM headgate.webhooks w
             JOIN headgate.topics t ON t.topic_no = ANY (topics_) AND t.name LIKE ANY (w.patterns)
            WHERE w.tenant_no = tenant_ AND w.enabled AND w.events & 1 /* job.completed */ <> 0) THEN
        RETURN false;
    END IF;
    -- explain: events
    INSERT INTO headgate.webhook_deliveries (tenant_no, webhook_no, event, at, topic_no, job_id, next_at, data)
    SELECT tenant_, w.webhook_no, e.event, a.finished_at, a.topic_no, a.id, at_,
           jsonb_strip_nulls(jsonb_build_object(
               'job_id', a.id, 'topic', t.name,
               'state', CASE a.state WHEN 5 THEN 'completed' WHEN 6 THEN 'dead' ELSE 'cancelled' END,
               'attempt', a.attempt, 'max_attempts', a.max_attempts, 'priority', a.priority,
               'created_at', to_char(a.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'started_at', to_char(a.claimed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'finished_at', to_char(a.finished_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'error', CASE WHEN a.state <> 5 /* completed */ THEN a.last_error END))
      FROM headgate.archive a
     CROSS JOIN LATERAL (SELECT (1 << (a.state - 5))::smallint AS event) AS e
      JOIN headgate.topics t ON t.topic_no = a.topic_no
      JOIN headgate.webhooks w ON w.tenant_no = tenant_ AND w.enabled AND w.events & e.event <> 0 AND t.name LIKE ANY (w.patterns)
       AND (w.expires_at IS NULL OR w.expires_at > at_)
       AND (NOT w.named_only OR a.headers ->> 'headgate-webhook' = w.id::text)
     WHERE a.tenant_no = tenant_ AND a.id = ANY (ids_) AND a.finished_at = at_;      -- index: archive_pkey
    -- explain: end
    RETURN FOUND;
END $$;
