-- Once a second per instance, whatever the number of workers: everything that is due, in one call.
--   pending   a topic with claimable jobs in a range          paused   a target that is paused, and until when
--   promoted  a job made claimable just now                   problem  why (detail) a job could not be (one_by_one_ only)
--   cancel    a job this instance runs that is to be stopped (number: its epoch)
--   due       when the next waiting job falls due (number: 1 if it did before the tick began: others have locked it)
--   running   when the oldest attempt that still runs began
--   unblock   jobs that waited for others may be claimable (see unblock_ready_v1)      bulk   some operations are not over
--   capacity  a topic whose limits let jobs start now, or (at) later
--   names     topics were made or changed by transactions that the snapshot names_seen_ does not show (store/names.py)
--   oldest_transaction, next_transaction   of a snapshot: the oldest that has not ended, and the next to begin (number)
--   others    how many other instances were seen lately (number)
--   forgotten this instance has no row: the database is an older one than it registered in
--   webhook   events are due to be delivered, or topics to be looked at for queue.ready
--   record    completions are to be noted for streams of events (settle_recorded_v1)
--   quiet     a hash (number) of the workers that get no jobs; none when there are none
--   stops     likewise of the workers that were asked to stop
-- Each part is bounded and safe to run on every instance at once. A held lock is waited for a tenth of a
-- second: what is promoted is locked meanwhile, and this instance gets no news. The watchdog is a call of its own, reap_v1.
-- The ranges say where to look for claimable jobs, as those of claim_v1 do: whole topics, or what a watermark leaves of
-- them. While an old snapshot is held, a topic's head is all dead entries, more of them every second. Without a
-- running_floor_ no running jobs are looked at (cancel, running), and seen_at stays as it is: such ticks come for due jobs,
-- many in a second.
CREATE FUNCTION headgate.tick_v1(
    instance_ int, topics_ int[], class_from_ int[], rank_from_ bigint[], class_to_ int[], rank_to_ bigint[],
    promote_n_ int, promote_floor_ timestamptz, running_floor_ timestamptz, one_by_one_ boolean DEFAULT false,
    names_seen_ pg_snapshot DEFAULT NULL)
RETURNS TABLE (kind text, tenant_no int, topic_no int, id uuid, number bigint, at timestamptz, detail text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now    timestamptz := headgate.clock_v1();
BEGIN
    PERFORM set_config('lock_timeout', CASE WHEN one_by_one_ THEN '5' ELSE '100' END, true);
    IF running_floor_ IS NOT NULL THEN
        UPDATE headgate.instances i SET seen_at = v_now WHERE i.instance_no = instance_;
    ELSE
        PERFORM FROM headgate.instances i WHERE i.instance_no = instance_;
    END IF;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'forgotten', NULL::int, NULL::int, NULL::uuid, NULL::bigint, NULL::timestamptz, NULL::text;
    END IF;
    -- Before anything is looked for: what ends meanwhile may have been missed.
    RETURN QUERY SELECT b.kind, NULL::int, NULL::int, NULL::uuid, b.xid::text::bigint, NULL::timestamptz, NULL::text
                   FROM (SELECT pg_current_snapshot() AS now) AS s
                  CROSS JOIN LATERAL (VALUES ('oldest_transaction', pg_snapshot_xmin(s.now)),
                                             ('next_transaction', pg_snapshot_xmax(s.now))) AS b(kind, xid);
    RETURN QUERY SELECT 'others', NULL::int, NULL::int, NULL::uuid, count(*), NULL::timestamptz, NULL::text
                   FROM headgate.instances i
                  WHERE i.instance_no <> instance_ AND i.seen_at > v_now - interval '5 seconds';
    RETURN QUERY SELECT 'paused', c.tenant_no, c.topic_no, NULL::uuid, NULL::bigint, c.paused_until, NULL::text
                   FROM headgate.dispatch_control c
                  WHERE c.paused AND (c.paused_until IS NULL OR c.paused_until > v_now);
    RETURN QUERY SELECT 'quiet', NULL::int, NULL::int, NULL::uuid, h.n::bigint, NULL::timestamptz, NULL::text
                   FROM (SELECT hashtext(string_agg(q.tenant_no || ' ' || q.worker, E'\n' ORDER BY q.tenant_no, q.worker)) AS n
                           FROM headgate.quiet_names q WHERE q.until > v_now) AS h WHERE h.n IS NOT NULL;
    RETURN QUERY SELECT 'stops', NULL::int, NULL::int, NULL::uuid, h.n::bigint, NULL::timestamptz, NULL::text
                   FROM (SELECT hashtext(string_agg(s.tenant_no || ' ' || s.worker || ' ' || extract(epoch FROM s.since),
                                                    E'\n' ORDER BY s.tenant_no, s.worker)) AS n
                           FROM headgate.worker_stops s WHERE s.until > v_now) AS h WHERE h.n IS NOT NULL;
    RETURN QUERY SELECT 'record', NULL::int, NULL::int, NULL::uuid, NULL::bigint, NULL::timestamptz, NULL::text
                   FROM headgate.event_recording r WHERE r.until > v_now;
    RETURN QUERY SELECT CASE WHEN p.problem IS NULL THEN 'promoted' ELSE 'problem' END, p.tenant_no, p.topic_no, p.id,
                        NULL::bigint, p.run_at, p.problem
                   FROM headgate.promote_v1(promote_n_, promote_floor_, one_by_one_) AS p;
    RETURN QUERY SELECT 'names', NULL::int, NULL::int, NULL::uuid, NULL::bigint, NULL::timestamptz, NULL::text
                  WHERE EXISTS (SELECT FROM headgate.topics t                                       -- index: topics_changed
                                 WHERE t.changed_by >= pg_snapshot_xmin(names_seen_)
                                   AND NOT pg_visible_in_snapshot(t.changed_by, names_seen_));
    IF EXISTS (SELECT FROM headgate.topic_limits) THEN
        RETURN QUERY SELECT 'capacity', NULL::int, f.topic_no, NULL::uuid, NULL::bigint, f.at, NULL::text
                       FROM headgate.admit_due_v1(500) AS f;
    END IF;
    RETURN QUERY SELECT 'cancel', j.tenant_no, j.topic_no, j.id, j.epoch, NULL::timestamptz, NULL::text FROM headgate.jobs j
                  WHERE j.state = 1 /* running */ AND j.claimed_at >= running_floor_ AND j.owner = instance_
                    AND j.flags & 16 /* cancel_requested */ <> 0
                  LIMIT 1000;
    RETURN QUERY SELECT 'running', NULL::int, NULL::int, NULL::uuid, NULL::bigint, o.at, NULL::text
                   FROM headgate.oldest_running_v1(running_floor_) AS o(at) WHERE o.at IS NOT NULL;
    -- explain: pending
    RETURN QUERY SELECT DISTINCT 'pending', NULL::int, r.no, NULL::uuid, NULL::bigint, NULL::timestamptz, NULL::text
                   FROM unnest(topics_, class_from_, rank_from_, class_to_, rank_to_)
                        AS r(no, class_from, rank_from, class_to, rank_to)
                  -- Each range in two parts, as in claim_v1.                                    -- index: jobs_claim_order
                  WHERE EXISTS (SELECT FROM headgate.jobs j
                                 WHERE r.class_from < r.class_to AND j.topic_no = r.no AND j.state = 0 /* pending */
                                   AND (j.rank_class, j.rank_at) >= (r.class_from, r.rank_from) AND j.rank_class < r.class_to)
                     OR EXISTS (SELECT FROM headgate.jobs j
                                 WHERE j.topic_no = r.no AND j.state = 0 /* pending */ AND j.rank_class = r.class_to
                                   AND j.rank_at < r.rank_to
                                   AND j.rank_at >= CASE WHEN r.class_from = r.class_to THEN r.rank_from
                                                         ELSE '-9223372036854775808'::bigint END);
    -- explain: end
    RETURN QUERY SELECT 'unblock', NULL::int, NULL::int, NULL::uuid, NULL::bigint, NULL::timestamptz, NULL::text
                  WHERE EXISTS (SELECT FROM headgate.dependency_checks);
    RETURN QUERY SELECT 'bulk', NULL::int, NULL::int, NULL::uuid, NULL::bigint, NULL::timestamptz, NULL::text
                  WHERE EXISTS (SELECT FROM headgate.bulk_operations o
                                 WHERE o.state IN (0, 1) /* pending, running */);   -- index: bulk_operations_active
    -- Endpoints are few, and each has an index of its own deliveries.  index: webhook_deliveries_due
    RETURN QUERY SELECT 'webhook', NULL::int, NULL::int, NULL::uuid, NULL::bigint, NULL::timestamptz, NULL::text
                  WHERE EXISTS (SELECT FROM headgate.webhooks w
                                 WHERE w.enabled AND (w.look_at <= v_now
                                    OR EXISTS (SELECT FROM headgate.webhook_deliveries d
                                                WHERE d.webhook_no = w.webhook_no AND d.next_at <= v_now)));
    RETURN QUERY SELECT 'due', NULL::int, NULL::int, NULL::uuid, (d.run_at <= v_now)::int::bigint, d.run_at, NULL::text
                   FROM (SELECT j.run_at FROM headgate.jobs j
                          WHERE j.state IN (2, 3) /* scheduled, retrying */ AND j.run_at >= promote_floor_
                          ORDER BY j.run_at LIMIT 1) AS d;
END $$;
