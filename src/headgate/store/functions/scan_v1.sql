-- Looks at everything: at topics from their head, and at waiting and running jobs below the floors of ticks. It writes and
-- locks nothing, so no due job waits for it, as it waits for a tick. While an old snapshot is held elsewhere, it reads all
-- rows that have ended since: their index entries cannot be removed (ADR 24).
--   pending  a topic with claimable jobs            due  when the first waiting job falls due
--   running  when the oldest attempt that still runs began
CREATE FUNCTION headgate.scan_v1(topics_ int[], floors_ boolean) RETURNS TABLE (kind text, topic_no int, at timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT 'pending', j.topic_no, NULL::timestamptz FROM unnest(topics_) AS t(no)       -- index: jobs_claim_order
                  CROSS JOIN LATERAL (SELECT p.topic_no FROM headgate.jobs p
                                       WHERE p.topic_no = t.no AND p.state = 0 /* pending */
                                       ORDER BY p.topic_no, p.rank_class, p.rank_at LIMIT 1) AS j;
    IF floors_ THEN
        RETURN QUERY SELECT 'due', NULL::int, d.run_at
                       FROM (SELECT j.run_at FROM headgate.jobs j
                              WHERE j.state IN (2, 3) /* scheduled, retrying */ ORDER BY j.run_at LIMIT 1) AS d;  -- index: jobs_due
        RETURN QUERY SELECT 'running', NULL::int, o.at
                       FROM headgate.oldest_running_v1('-infinity') AS o(at) WHERE o.at IS NOT NULL;
    END IF;
END $$;
