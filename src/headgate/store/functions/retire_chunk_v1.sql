-- Continues with the walk of a day: looks at up to n_ jobs in key order and removes those that are old, with what hangs on
-- them. whole_: the day is detached and all of it is old; its rows stay for the drop. No row: another instance is at it.
CREATE FUNCTION headgate.retire_chunk_v1(day_ date, n_ int, whole_ boolean)
RETURNS TABLE (looked int, removed int, done boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now    timestamptz := headgate.clock_v1();
    v_age    bigint := floor(extract(epoch FROM v_now - ((day_ + 1)::timestamp AT TIME ZONE 'UTC')) * 1000)::bigint;
    v_table  text := 'archive_' || to_char(day_, 'YYYYMMDD');
    v_rules  text := CASE WHEN whole_ THEN 'whole' ELSE headgate.rules_due_v1(day_) END;
    v_walk   record;
    v_looked int;
    v_last_tenant int;
    v_last_id uuid;
    v_tenants int[];
    v_ids    uuid[];
    v_flags  smallint[];
    v_states smallint[];
    v_created timestamptz[];
    v_finished timestamptz[];
    v_old    int;
    v_missed boolean;
    v_done   boolean;
    v_empty  boolean := false;
BEGIN
    IF v_rules IS NULL THEN RETURN QUERY SELECT 0, 0, true; RETURN; END IF;
    IF NOT EXISTS (SELECT FROM headgate.retention_days r WHERE r.day = day_) THEN
        INSERT INTO headgate.retention_days (day) VALUES (day_) ON CONFLICT DO NOTHING;
    END IF;
    SELECT r.rules, r.tenant_no, r.id, r.missed, r.done INTO v_walk
      FROM headgate.retention_days r WHERE r.day = day_ FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN; END IF;
    IF v_walk.rules IS DISTINCT FROM v_rules THEN      -- another rule is due, or one was changed: from the start
        v_walk.tenant_no := 0;
        v_walk.id := '00000000-0000-0000-0000-000000000000';
        v_walk.missed := false;
    ELSIF v_walk.done THEN
        RETURN QUERY SELECT 0, 0, true;
        RETURN;
    END IF;
    EXECUTE format($sql$
        SELECT count(*), count(*) FILTER (WHERE c.old), array_agg(c.tenant_no) FILTER (WHERE c.old),
               array_agg(c.id) FILTER (WHERE c.old), array_agg(c.flags) FILTER (WHERE c.old),
               array_agg(c.state) FILTER (WHERE c.old), array_agg(c.created_at) FILTER (WHERE c.old),
               array_agg(c.finished_at) FILTER (WHERE c.old), max(c.tenant_no),
               (array_agg(c.id ORDER BY c.tenant_no DESC, c.id DESC))[1]
          FROM (SELECT a.tenant_no, a.id, a.flags, a.state, a.created_at, a.finished_at,
                       $4 OR coalesce(CASE a.state WHEN 5 THEN coalesce(t.keep_completed_ms, d.completed_ms)
                                                   WHEN 6 THEN coalesce(t.keep_dead_ms, d.dead_ms)
                                                   ELSE coalesce(t.keep_cancelled_ms, d.cancelled_ms) END <= $5, false) AS old
                  FROM (SELECT x.tenant_no, x.id, x.flags, x.state, x.created_at, x.finished_at, x.topic_no FROM headgate.%I x
                         WHERE (x.tenant_no, x.id) > ($1, $2) ORDER BY x.tenant_no, x.id LIMIT $3) AS a
                 CROSS JOIN headgate.retention d
                  LEFT JOIN headgate.topics t ON t.topic_no = a.topic_no) AS c $sql$, v_table)
       INTO v_looked, v_old, v_tenants, v_ids, v_flags, v_states, v_created, v_finished, v_last_tenant, v_last_id
      USING v_walk.tenant_no, v_walk.id, n_, whole_, v_age;
    IF v_old > 0 AND NOT whole_ THEN
        -- Locked without waiting: a job that is being redriven at this moment is looked at in a later walk.
        EXECUTE format($sql$
            WITH held AS MATERIALIZED (
                SELECT a.ctid AS place FROM unnest($1::int[], $2::uuid[]) AS u(tenant_no, id)
                  JOIN headgate.%1$I a ON a.tenant_no = u.tenant_no AND a.id = u.id FOR UPDATE OF a SKIP LOCKED),
            gone AS (
                DELETE FROM headgate.%1$I a WHERE a.ctid = ANY (ARRAY(SELECT h.place FROM held h))
                RETURNING a.tenant_no, a.id, a.flags, a.state, a.created_at, a.finished_at, a.topic_no),
            counted AS (
                INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
                SELECT g.tenant_no, g.topic_no, g.state, -1 /* none */, count(*), $3 FROM gone g GROUP BY 1, 2, 3)
            SELECT array_agg(g.tenant_no), array_agg(g.id), array_agg(g.flags), array_agg(g.state), array_agg(g.created_at),
                   array_agg(g.finished_at) FROM gone g $sql$, v_table)
           INTO v_tenants, v_ids, v_flags, v_states, v_created, v_finished USING v_tenants, v_ids, v_now;
    END IF;
    IF v_old > 0 AND whole_ AND (SELECT bit_or(f) FROM unnest(v_flags) AS f) & 3687 /* has_other_rows */ <> 0 THEN
        -- Since the detach a job with the same id may have been submitted. Of what both have, the rows are the new one's: its
        -- submit has removed or replaced the old ones (forget_first_lives_v1, submit_v1). Locked before it is looked for: a
        -- submit that does so either is seen here, or finds the rows gone.
        PERFORM FROM unnest(v_tenants, v_ids, v_flags) AS u(tenant_no, id, flags)
           JOIN headgate.payloads p ON p.tenant_no = u.tenant_no AND p.id = u.id
          WHERE u.flags & 1 /* payload_apart */ <> 0 ORDER BY u.tenant_no, u.id FOR UPDATE OF p;
        PERFORM FROM unnest(v_tenants, v_ids, v_flags) AS u(tenant_no, id, flags)
           JOIN headgate.job_limit_keys k ON k.tenant_no = u.tenant_no AND k.job_id = u.id
          WHERE u.flags & 4 /* limit_key */ <> 0 ORDER BY u.tenant_no, u.id FOR UPDATE OF k;
        PERFORM FROM unnest(v_tenants, v_ids, v_flags) AS u(tenant_no, id, flags)
           JOIN headgate.job_tags t ON t.tenant_no = u.tenant_no AND t.job_id = u.id
          WHERE u.flags & 2 /* tagged */ <> 0 ORDER BY u.tenant_no, u.id FOR UPDATE OF t;
        PERFORM FROM unnest(v_tenants, v_ids, v_flags) AS u(tenant_no, id, flags)
           JOIN headgate.job_dependencies d ON d.tenant_no = u.tenant_no AND d.child_id = u.id
          WHERE u.flags & 512 /* has_parents */ <> 0 ORDER BY u.tenant_no, u.id FOR UPDATE OF d;
        PERFORM FROM unnest(v_tenants, v_ids, v_flags) AS u(tenant_no, id, flags)
           JOIN headgate.batch_jobs b ON b.tenant_no = u.tenant_no AND b.job_id = u.id
          WHERE u.flags & 1024 /* in_batch */ <> 0 ORDER BY u.tenant_no, u.id FOR UPDATE OF b;
        PERFORM FROM unnest(v_tenants, v_ids, v_flags) AS u(tenant_no, id, flags)
           JOIN headgate.unique_jobs q ON q.tenant_no = u.tenant_no AND q.job_id = u.id
          WHERE u.flags & 2048 /* unique */ <> 0 ORDER BY u.tenant_no, u.id FOR UPDATE OF q;
        -- And the new ones themselves, which may just now get a first child, or another body.
        PERFORM FROM unnest(v_tenants, v_ids, v_flags) AS u(tenant_no, id, flags)
           JOIN headgate.jobs j ON j.tenant_no = u.tenant_no AND j.id = u.id
          WHERE u.flags & 3687 /* has_other_rows */ <> 0 ORDER BY u.tenant_no, u.id FOR UPDATE OF j;
        SELECT array_agg(u.flags & ~coalesce(n.flags, 0::smallint) ORDER BY u.n) INTO v_flags
          FROM unnest(v_tenants, v_ids, v_flags) WITH ORDINALITY AS u(tenant_no, id, flags, n)
          LEFT JOIN LATERAL (
               (SELECT j.flags FROM headgate.jobs j
                 WHERE j.tenant_no = u.tenant_no AND j.id = u.id AND u.flags & 3687 /* has_other_rows */ <> 0)
               UNION ALL
               (SELECT a.flags FROM headgate.archive a
                 WHERE a.tenant_no = u.tenant_no AND a.id = u.id AND u.flags & 3687 /* has_other_rows */ <> 0)
               LIMIT 1) AS n ON true;
    END IF;
    IF v_ids IS NOT NULL THEN
        PERFORM headgate.forget_jobs_v1(v_tenants, v_ids, v_flags, v_states, v_created, v_finished);
    END IF;
    v_missed := v_walk.missed OR coalesce(cardinality(v_ids), 0) < v_old;
    v_done := v_looked < n_ AND NOT v_missed;
    IF v_done AND NOT whole_ THEN
        EXECUTE format('SELECT NOT EXISTS (SELECT FROM headgate.%I)', v_table) INTO v_empty;
    END IF;
    UPDATE headgate.retention_days r
       SET rules = v_rules, done = v_done, empty = v_empty,
           -- At the end with some missed: once more from the start, after a rest, since their locks may be held for long.
           missed = v_missed AND v_looked = n_,
           rest_until = CASE WHEN v_missed AND v_looked < n_ THEN v_now + interval '1 minute' END,
           tenant_no = CASE WHEN v_looked = n_ THEN v_last_tenant ELSE 0 END,
           id = CASE WHEN v_looked = n_ THEN v_last_id ELSE '00000000-0000-0000-0000-000000000000' END
     WHERE r.day = day_;
    RETURN QUERY SELECT v_looked, coalesce(cardinality(v_ids), 0), v_looked < n_;
END $$;
