-- Retention: which finished jobs are old enough to be removed, and their removal in bounded chunks.
--
-- Ages are counted by whole UTC days: a job is old when its day ended longer ago than its rule says. So each day is walked
-- once per rule that falls due, not once per tick. A day in which every rule is due is detached and dropped whole; in any
-- other, rows are deleted by key. headgate.retention_days remembers how far a walk is: its row is locked by the instance that works
-- on the day, so that two instances never walk the same day, and a walk that was cut off goes on where it stopped.

-- The rules that are due for a day, as text: equal texts mean that a finished walk has left nothing to remove. First those
-- of topics without rules of their own (completed, dead, cancelled), then each topic that has some. NULL: none is due.
CREATE FUNCTION headgate.rules_due_v1(day_ date) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH age AS (
        SELECT floor(extract(epoch FROM headgate.clock_v1() - ((day_ + 1)::timestamp AT TIME ZONE 'UTC')) * 1000)::bigint AS ms),
    due AS (
        SELECT 0 AS topic_no, d.completed_ms <= a.ms AS completed, d.dead_ms <= a.ms AS dead, d.cancelled_ms <= a.ms AS cancelled
          FROM headgate.retention d, age a
         UNION ALL
        SELECT t.topic_no, coalesce(t.keep_completed_ms, d.completed_ms) <= a.ms, coalesce(t.keep_dead_ms, d.dead_ms) <= a.ms,
               coalesce(t.keep_cancelled_ms, d.cancelled_ms) <= a.ms
          FROM headgate.topics t, headgate.retention d, age a
         WHERE t.keep_completed_ms IS NOT NULL OR t.keep_dead_ms IS NOT NULL OR t.keep_cancelled_ms IS NOT NULL)
    SELECT CASE WHEN bool_or(u.completed OR u.dead OR u.cancelled) THEN
               string_agg(u.topic_no || ':' || u.completed::int || u.dead::int || u.cancelled::int, ' ' ORDER BY u.topic_no) END
      FROM due u
$$;

-- The shortest and the longest time that anything is kept.
CREATE FUNCTION headgate.keep_bounds_v1(OUT shortest_ms bigint, OUT longest_ms bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT least(d.completed_ms, d.dead_ms, d.cancelled_ms, t.low), greatest(d.completed_ms, d.dead_ms, d.cancelled_ms, t.high)
      FROM headgate.retention d
     CROSS JOIN (SELECT min(least(keep_completed_ms, keep_dead_ms, keep_cancelled_ms)) AS low,
                        max(greatest(keep_completed_ms, keep_dead_ms, keep_cancelled_ms)) AS high FROM headgate.topics) AS t
$$;

-- Days of the archive in which something may be old, oldest first: `due` when a walk is to be made or to go on, `empty`
-- when nothing is left in it. Days that are old as a whole are not among them: see drop_expired.
CREATE FUNCTION headgate.days_due_v1() RETURNS TABLE (day date, due boolean, empty boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_now    timestamptz := headgate.clock_v1();
    v_bounds record;
BEGIN
    SELECT b.shortest_ms, b.longest_ms INTO v_bounds FROM headgate.keep_bounds_v1() AS b;
    RETURN QUERY
    WITH attached AS MATERIALIZED (      -- a name is read as a date only when it is known to be that of a partition
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'headgate.archive'::regclass AND c.relname ~ '^archive_[0-9]{8}$' AND NOT i.inhdetachpending)
    SELECT p.day,
           NOT coalesce(r.done AND r.rules = f.rules OR r.rest_until > v_now, false),
           coalesce(r.done AND r.empty AND r.rules = f.rules, false)
      FROM (SELECT to_date(right(a.relname, 8), 'YYYYMMDD') AS day FROM attached a) AS p
     CROSS JOIN LATERAL (SELECT (p.day + 1)::timestamp AT TIME ZONE 'UTC' AS ended) AS e
     CROSS JOIN LATERAL (SELECT headgate.rules_due_v1(p.day) AS rules) AS f
      LEFT JOIN headgate.retention_days r ON r.day = p.day
     WHERE e.ended <= v_now - v_bounds.shortest_ms * interval '1 ms' AND e.ended > v_now - v_bounds.longest_ms * interval '1 ms'
       AND f.rules IS NOT NULL
     ORDER BY p.day;
END $$;

-- Day partitions with nothing in them that will not be written to any more: days of the archive that retention has emptied,
-- and days of events without a day of the archive beside them.
CREATE FUNCTION headgate.empty_days_v1() RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_name  text;
    v_empty boolean;
BEGIN
    FOR v_name IN
        SELECT 'archive_' || to_char(d.day, 'YYYYMMDD') FROM headgate.days_due_v1() AS d WHERE d.empty
         UNION ALL
        SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'headgate.job_events'::regclass AND c.relname ~ '^job_events_[0-9]{8}$'
           AND right(c.relname, 8) < to_char(headgate.clock_v1() AT TIME ZONE 'UTC' - interval '1 day', 'YYYYMMDD')
           AND to_regclass('headgate.archive_' || right(c.relname, 8)) IS NULL
    LOOP
        EXECUTE format('SELECT NOT EXISTS (SELECT FROM headgate.%I)', v_name) INTO v_empty;
        IF v_empty THEN RETURN NEXT v_name; END IF;
    END LOOP;
END $$;

-- Deletes what hangs on finished jobs that are being removed: they are locked by the caller, or in a day that was detached,
-- so they cannot be redriven. The one list of side tables. Idempotency keys and resent ids are not among them: they live
-- for their own time, so that a submit sent again is still recognised.
CREATE FUNCTION headgate.forget_jobs_v1(
    tenants_ int[], ids_ uuid[], flags_ smallint[], states_ smallint[], created_ timestamptz[], finished_ timestamptz[])
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_all    int := (SELECT bit_or(f) FROM unnest(flags_) AS f);
    v_tenant int;
    v_ids    uuid[];
BEGIN
    -- Events of a job lie between its submit and its end; the dependencies of a submit are noted a moment before it.
    DELETE FROM headgate.job_events e USING unnest(tenants_, ids_, created_, finished_) AS u(tenant_no, id, first, last)
     WHERE e.tenant_no = u.tenant_no AND e.job_id = u.id AND e.at >= u.first - interval '1 minute' AND e.at <= u.last;
    IF v_all & 3687 = 0 THEN RETURN; END IF;
    IF v_all & 1 <> 0 THEN              -- 1: payload in headgate.payloads
        DELETE FROM headgate.payloads p USING unnest(tenants_, ids_, flags_) AS u(tenant_no, id, flags)
         WHERE u.flags & 1 <> 0 AND p.tenant_no = u.tenant_no AND p.id = u.id;
    END IF;
    IF v_all & 2 <> 0 THEN              -- 2: tags
        DELETE FROM headgate.job_tags t USING unnest(tenants_, ids_, flags_) AS u(tenant_no, id, flags)
         WHERE u.flags & 2 <> 0 AND t.tenant_no = u.tenant_no AND t.job_id = u.id;
    END IF;
    IF v_all & 4 <> 0 THEN              -- 4: limit key
        DELETE FROM headgate.job_limit_keys k USING unnest(tenants_, ids_, flags_) AS u(tenant_no, id, flags)
         WHERE u.flags & 4 <> 0 AND k.tenant_no = u.tenant_no AND k.job_id = u.id;
    END IF;
    IF v_all & 32 <> 0 THEN             -- 32: others wait for it
        -- Children that still wait for a redrive are cancelled: the parent is gone for good.
        FOR v_tenant, v_ids IN SELECT u.tenant_no, array_agg(u.id) FROM unnest(tenants_, ids_, flags_) AS u(tenant_no, id, flags)
                                WHERE u.flags & 32 <> 0 GROUP BY 1 ORDER BY 1 LOOP
            PERFORM headgate.ended_v1(v_tenant, v_ids, array_fill(8::smallint, ARRAY[cardinality(v_ids)]));
        END LOOP;
        -- Bounded for each parent; what is over goes with the children.
        DELETE FROM headgate.job_dependencies d
         USING unnest(tenants_, ids_, flags_) AS u(tenant_no, id, flags)
         CROSS JOIN LATERAL (SELECT x.child_id FROM headgate.job_dependencies x
                              WHERE x.tenant_no = u.tenant_no AND x.parent_id = u.id AND x.met = 1 LIMIT 1000) AS c
         WHERE u.flags & 32 <> 0 AND d.tenant_no = u.tenant_no AND d.parent_id = u.id AND d.child_id = c.child_id;
    END IF;
    IF v_all & 512 <> 0 THEN            -- 512: was made to wait for others
        DELETE FROM headgate.job_dependencies d USING unnest(tenants_, ids_, flags_) AS u(tenant_no, id, flags)
         WHERE u.flags & 512 <> 0 AND d.tenant_no = u.tenant_no AND d.child_id = u.id;
    END IF;
    IF v_all & 1024 <> 0 THEN           -- 1024: part of a batch, which goes on counting it
        WITH gone AS (
            DELETE FROM headgate.batch_jobs b USING unnest(tenants_, ids_, flags_, states_) AS u(tenant_no, id, flags, state)
             WHERE u.flags & 1024 <> 0 AND b.tenant_no = u.tenant_no AND b.job_id = u.id
            RETURNING b.tenant_no, b.batch_id, u.state)
        UPDATE headgate.batches b
           SET gone_completed = b.gone_completed + k.completed, gone_dead = b.gone_dead + k.dead,
               gone_cancelled = b.gone_cancelled + k.cancelled
          FROM (SELECT g.tenant_no, g.batch_id, count(*) FILTER (WHERE g.state = 5) AS completed,
                       count(*) FILTER (WHERE g.state = 6) AS dead, count(*) FILTER (WHERE g.state = 7) AS cancelled
                  FROM gone g GROUP BY 1, 2 ORDER BY 1, 2) AS k
         WHERE b.tenant_no = k.tenant_no AND b.id = k.batch_id;
    END IF;
    IF v_all & 2048 <> 0 THEN           -- 2048: had a unique key
        DELETE FROM headgate.unique_jobs q USING unnest(tenants_, ids_, flags_) AS u(tenant_no, id, flags)
         WHERE u.flags & 2048 <> 0 AND q.tenant_no = u.tenant_no AND q.job_id = u.id AND NOT q.live;
    END IF;
    IF v_all & 64 <> 0 THEN             -- 64: made by a schedule
        DELETE FROM headgate.schedule_jobs s USING unnest(tenants_, ids_, flags_) AS u(tenant_no, id, flags)
         WHERE u.flags & 64 <> 0 AND s.tenant_no = u.tenant_no AND s.job_id = u.id;
    END IF;
END $$;

-- Jobs of a tenant that are about to be submitted with dependencies, and of which none is there: if one was there before, in a day
-- that is detached and not cleared yet, what is left of it is removed now. Else its dependencies would become the new one's.
CREATE FUNCTION headgate.forget_first_lives_v1(tenant_ int, ids_ uuid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_day    date;
    v_ids    uuid[];
    v_flags  smallint[];
    v_states smallint[];
    v_created timestamptz[];
    v_finished timestamptz[];
BEGIN
    FOR v_day IN SELECT r.day FROM headgate.retention_days r WHERE r.leaving ORDER BY r.day LOOP
        BEGIN
            EXECUTE format('SELECT array_agg(a.id), array_agg(a.flags), array_agg(a.state), array_agg(a.created_at), '
                           'array_agg(a.finished_at) FROM headgate.%I a WHERE a.tenant_no = $1 AND a.id = ANY ($2)',
                           'archive_' || to_char(v_day, 'YYYYMMDD'))
               INTO v_ids, v_flags, v_states, v_created, v_finished USING tenant_, ids_;
        EXCEPTION WHEN undefined_table THEN
            CONTINUE;      -- it was dropped just now
        END;
        IF v_ids IS NOT NULL THEN
            PERFORM headgate.forget_jobs_v1(array_fill(tenant_, ARRAY[cardinality(v_ids)]), v_ids, v_flags, v_states,
                                            v_created, v_finished);
        END IF;
    END LOOP;
END $$;

-- Goes on with the walk of a day: looks at up to n_ jobs in key order and removes those that are old, with what hangs on
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
                SELECT g.tenant_no, g.topic_no, g.state, -1, count(*), $3 FROM gone g GROUP BY 1, 2, 3)
            SELECT array_agg(g.tenant_no), array_agg(g.id), array_agg(g.flags), array_agg(g.state), array_agg(g.created_at),
                   array_agg(g.finished_at) FROM gone g $sql$, v_table)
           INTO v_tenants, v_ids, v_flags, v_states, v_created, v_finished USING v_tenants, v_ids, v_now;
    END IF;
    IF v_old > 0 AND whole_ AND (SELECT bit_or(f) FROM unnest(v_flags) AS f) & 3687 <> 0 THEN
        -- Since the detach a job with the same id may have been submitted. Of what both have, the rows are the new one's: its
        -- submit has removed or replaced the old ones (forget_first_lives_v1, submit_v1). Locked before it is looked for: a
        -- submit that does so either is seen here, or finds the rows gone.
        PERFORM FROM unnest(v_tenants, v_ids, v_flags) AS u(tenant_no, id, flags)
           JOIN headgate.payloads p ON p.tenant_no = u.tenant_no AND p.id = u.id
          WHERE u.flags & 1 <> 0 ORDER BY u.tenant_no, u.id FOR UPDATE OF p;
        PERFORM FROM unnest(v_tenants, v_ids, v_flags) AS u(tenant_no, id, flags)
           JOIN headgate.job_limit_keys k ON k.tenant_no = u.tenant_no AND k.job_id = u.id
          WHERE u.flags & 4 <> 0 ORDER BY u.tenant_no, u.id FOR UPDATE OF k;
        PERFORM FROM unnest(v_tenants, v_ids, v_flags) AS u(tenant_no, id, flags)
           JOIN headgate.job_tags t ON t.tenant_no = u.tenant_no AND t.job_id = u.id
          WHERE u.flags & 2 <> 0 ORDER BY u.tenant_no, u.id FOR UPDATE OF t;
        PERFORM FROM unnest(v_tenants, v_ids, v_flags) AS u(tenant_no, id, flags)
           JOIN headgate.job_dependencies d ON d.tenant_no = u.tenant_no AND d.child_id = u.id
          WHERE u.flags & 512 <> 0 ORDER BY u.tenant_no, u.id FOR UPDATE OF d;
        PERFORM FROM unnest(v_tenants, v_ids, v_flags) AS u(tenant_no, id, flags)
           JOIN headgate.batch_jobs b ON b.tenant_no = u.tenant_no AND b.job_id = u.id
          WHERE u.flags & 1024 <> 0 ORDER BY u.tenant_no, u.id FOR UPDATE OF b;
        PERFORM FROM unnest(v_tenants, v_ids, v_flags) AS u(tenant_no, id, flags)
           JOIN headgate.unique_jobs q ON q.tenant_no = u.tenant_no AND q.job_id = u.id
          WHERE u.flags & 2048 <> 0 ORDER BY u.tenant_no, u.id FOR UPDATE OF q;
        -- And the new ones themselves, which may just now get a first child, or another body.
        PERFORM FROM unnest(v_tenants, v_ids, v_flags) AS u(tenant_no, id, flags)
           JOIN headgate.jobs j ON j.tenant_no = u.tenant_no AND j.id = u.id
          WHERE u.flags & 3687 <> 0 ORDER BY u.tenant_no, u.id FOR UPDATE OF j;
        SELECT array_agg(u.flags & ~coalesce(n.flags, 0::smallint) ORDER BY u.n) INTO v_flags
          FROM unnest(v_tenants, v_ids, v_flags) WITH ORDINALITY AS u(tenant_no, id, flags, n)
          LEFT JOIN LATERAL (
               (SELECT j.flags FROM headgate.jobs j WHERE j.tenant_no = u.tenant_no AND j.id = u.id AND u.flags & 3687 <> 0)
               UNION ALL
               (SELECT a.flags FROM headgate.archive a
                 WHERE a.tenant_no = u.tenant_no AND a.id = u.id AND u.flags & 3687 <> 0)
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

-- Detaches a day for a server that does not own the table: CONCURRENTLY, which blocks no one, is for owners, and cannot be
-- in a function. While this waits for its lock, settles wait behind it: so it waits for 200 ms, and is tried again later.
CREATE FUNCTION headgate.detach_day_v1(table_ text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
    v_begun boolean;
BEGIN
    IF table_ !~ '^(archive|job_events)_[0-9]{8}$' THEN RAISE EXCEPTION 'not a day partition: %', table_; END IF;
    SELECT i.inhdetachpending INTO v_begun FROM pg_inherits i
     WHERE i.inhrelid = to_regclass(format('headgate.%I', table_))
       AND i.inhparent IN ('headgate.archive'::regclass, 'headgate.job_events'::regclass);
    IF v_begun IS NULL THEN RETURN; END IF;      -- another instance was quicker
    EXECUTE format('ALTER TABLE headgate.%I DETACH PARTITION headgate.%I %s', left(table_, -9), table_,
                   CASE WHEN v_begun THEN 'FINALIZE' ELSE '' END);
END $$;

-- Drops a detached day; the counts people read follow in the same transaction. whole_: all of it is old. Else it was
-- detached because it was empty; should it not be (the clock was set back by days), it is attached again. True if dropped.
-- With the owner's rights, as detach_day_v1 (ADR 26).
CREATE FUNCTION headgate.retire_day_v1(table_ text, whole_ boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_day    date;
    v_filled boolean;
BEGIN
    IF table_ !~ '^(archive|job_events)_[0-9]{8}$' THEN RAISE EXCEPTION 'not a day partition: %', table_; END IF;
    v_day := to_date(right(table_, 8), 'YYYYMMDD');
    -- Locked before it is counted: two that had both counted would wait for each other with the drop.
    EXECUTE format('LOCK TABLE headgate.%I IN ACCESS EXCLUSIVE MODE', table_);
    EXECUTE format('SELECT EXISTS (SELECT FROM headgate.%I)', table_) INTO v_filled;
    IF v_filled AND NOT whole_ THEN
        EXECUTE format('ALTER TABLE headgate.%I ATTACH PARTITION headgate.%I FOR VALUES FROM (%L) TO (%L)',
                       left(table_, -9), table_, v_day || ' 00:00:00+00', (v_day + 1) || ' 00:00:00+00');
        UPDATE headgate.retention_days r SET leaving = false WHERE r.day = v_day AND table_ LIKE 'archive%';
        RETURN false;
    END IF;
    IF table_ LIKE 'archive%' THEN
        EXECUTE format('INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at) '
                       'SELECT tenant_no, topic_no, state, -1, count(*), headgate.clock_v1() FROM headgate.%I '
                       'GROUP BY 1, 2, 3', table_);
        DELETE FROM headgate.retention_days r WHERE r.day = v_day;
    END IF;
    EXECUTE format('DROP TABLE headgate.%I', table_);
    RETURN true;
END $$;
