-- One flush of submits. Returns only what was NOT simply created: (ord, receipt, job_id) with receipt 1 duplicate or
-- 2 conflict, job_id the job that was there first; 3 refused, its topic's backlog or a quota of its tenant is full (detail:
-- the limit, what is used of it, and whose: 0 the topic's, or the kind of over_quota_v1). No row for an ord means: created, as asked.
--
-- Parallel arrays, one element per job; an empty array means "the default for all" (unnest pads with NULL).
-- flags_: bits a job begins with; with 256 (waits for other jobs) it begins blocked.
-- Keys, tags and limit keys are sparse: (ord, value) pairs, ascending. The caller has validated everything and folded
-- repeated ids.
--
-- An id is new if it was made for this very call and never sent before. Anything else may be a copy of a submit whose job
-- has run and finished meanwhile, so the archive is checked AFTER the insert, in a later statement with a newer
-- snapshot: checked before, or in the insert's own statement, a completion in between would make a second job. Such
-- ids are also remembered for a while, so that a delayed first copy cannot insert them again.
--
-- new_id_until_: by when no id counts as new any more, since the sender may have been frozen for longer than such ids are
-- remembered. Decided here: a process can freeze between a check of its own and the send. A flush that is older still is
-- refused: the archive itself may have been dropped since.
--
-- bounded_: whether limits on the backlog and quotas count. They do not for dead letters, which must not get lost.
-- sized_: whether max_payload_bytes of tenants counts. It does not for schedules, whose payload was checked when they were put.
CREATE FUNCTION headgate.submit_v1(
    tenant_nos_ int[], ids_ uuid[], topic_nos_ int[], payloads_ bytea[],
    priorities_ int[], rank_classes_ int[], rank_offsets_ bigint[], delays_ms_ bigint[], run_ats_ timestamptz[],
    max_attempts_ int[], policy_nos_ int[], headers_ jsonb[], resent_ords_ int[],
    key_ords_ int[], keys_ text[], key_hashes_ bytea[], key_windows_ms_ bigint[], tag_ords_ int[], tags_ text[],
    limit_ords_ int[] DEFAULT '{}', limit_keys_ text[] DEFAULT '{}', flags_ smallint[] DEFAULT '{}',
    new_id_until_ timestamptz DEFAULT NULL, bounded_ boolean DEFAULT true, sized_ boolean DEFAULT true)
RETURNS TABLE (ord int, receipt smallint, job_id uuid, detail bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    v_now        timestamptz := headgate.clock_v1();
    v_now_us     bigint := (extract(epoch FROM v_now) * 1000000)::bigint;
    v_count      int := cardinality(ids_);
    v_epoch      bigint := nextval('headgate.epoch_ranges') << 10;     -- a range of epochs that no row had before
    v_skip       int[] := '{}';        -- ords whose key belongs to another job
    v_left_out   int[];                -- ords that are not inserted
    v_unsure     uuid;
    v_new_tenants int[];
    v_new_ids    uuid[];
    v_suspect    int[];                -- ords inserted just now that may have finished before
    v_undo       int[] := '{}';
    v_special        boolean;              -- anything but plain submits with new ids
    v_old_ords   int[];                -- ords whose id was there before, and their answers
    v_old_receipts smallint[];
    v_refused    int[] := '{}';        -- ords for which the backlog has no capacity
    v_one        record;
BEGIN
    IF new_id_until_ <= v_now THEN
        IF new_id_until_ < v_now - interval '1 hour' THEN
            RAISE EXCEPTION 'this flush of submits is more than an hour late; nothing was stored: send it again'
                USING ERRCODE = 'serialization_failure';
        END IF;
        resent_ords_ := ARRAY(SELECT generate_series(1, v_count));
    END IF;
    IF cardinality(headers_) > 0 THEN
        headers_ := ARRAY(SELECT headgate.deadline_v1(u.h, v_now) FROM unnest(headers_) WITH ORDINALITY AS u(h, n)
                           ORDER BY u.n);
    END IF;
    IF bounded_ AND EXISTS (SELECT FROM headgate.topic_limits l WHERE l.max_backlog IS NOT NULL) THEN
        FOR v_one IN SELECT r.ords, r.most, r.waiting
                       FROM headgate.over_backlog_v1(tenant_nos_, ids_, topic_nos_, key_ords_, keys_) AS r LOOP
            v_refused := v_refused || v_one.ords;
            RETURN QUERY SELECT o, 3::smallint, ids_[o], ARRAY[v_one.most, v_one.waiting, 0] FROM unnest(v_one.ords) AS o;
        END LOOP;
    END IF;
    IF bounded_ AND EXISTS (SELECT FROM headgate.tenants t WHERE t.bounded) THEN      -- index: tenants_bounded
        FOR v_one IN SELECT r.ords, r.most, r.used, r.kind
                       FROM headgate.over_quota_v1(tenant_nos_, ids_, topic_nos_, key_ords_, keys_,
                                                   CASE WHEN sized_ THEN payloads_ END) AS r LOOP
            RETURN QUERY SELECT o, 3::smallint, ids_[o], ARRAY[v_one.most, v_one.used, v_one.kind]
                           FROM unnest(v_one.ords) AS o WHERE o <> ALL (v_refused);
            v_refused := v_refused || v_one.ords;
        END LOOP;
    END IF;
    -- Keys first: the row in idempotency_keys is what two simultaneous submits of one key meet on.
    IF cardinality(key_ords_) > 0 THEN
        WITH given AS MATERIALIZED (
            SELECT k.o, tenant_nos_[k.o] AS tenant_no, topic_nos_[k.o] AS topic_no, k.key, ids_[k.o] AS id, k.hash, k.window_ms,
                   row_number() OVER (PARTITION BY topic_nos_[k.o], k.key ORDER BY k.o) AS nth
              FROM unnest(key_ords_, keys_, key_hashes_, key_windows_ms_) AS k(o, key, hash, window_ms)
             WHERE k.o <> ALL (v_refused)),
        won AS (
            INSERT INTO headgate.idempotency_keys AS k (tenant_no, topic_no, key, job_id, body_hash, expires_at)
            SELECT t.tenant_no, t.topic_no, t.key, t.id, t.hash, v_now + t.window_ms * interval '1 ms' FROM given t
             WHERE t.nth = 1 ORDER BY t.tenant_no, t.key, t.topic_no     -- one order for all: no deadlock
            ON CONFLICT (tenant_no, key, topic_no) DO UPDATE
               SET job_id = excluded.job_id, body_hash = excluded.body_hash, expires_at = excluded.expires_at
             WHERE k.expires_at <= v_now
            RETURNING k.topic_no, k.key)
        SELECT coalesce(array_agg(t.o), '{}') INTO v_skip FROM given t
         WHERE t.nth > 1 OR NOT EXISTS (SELECT FROM won w WHERE w.topic_no = t.topic_no AND w.key = t.key);
        -- A later statement: it sees the winner's row also when the winner committed while we waited for it.
        RETURN QUERY
        SELECT k.o, (CASE WHEN e.body_hash = k.hash THEN 1 ELSE 2 END)::smallint, e.job_id, NULL::bigint[]
          FROM unnest(key_ords_, keys_, key_hashes_) AS k(o, key, hash)
          JOIN LATERAL (SELECT i.job_id, i.body_hash FROM headgate.idempotency_keys i
                         WHERE i.tenant_no = tenant_nos_[k.o] AND i.key = k.key AND i.topic_no = topic_nos_[k.o] LIMIT 1) AS e ON true
         WHERE k.o = ANY (v_skip);
    END IF;
    v_skip := v_skip || v_refused;
    v_left_out := v_skip;
    IF cardinality(resent_ords_) > 0 AND current_setting('transaction_isolation') <> 'read committed' THEN
        -- All statements have one snapshot here, so the archive cannot be looked at in a newer one after the insert. What is
        -- known in that snapshot is a repeat, whatever became of it since. Of anything else it cannot be known whether it has
        -- run since the snapshot was taken.
        SELECT ids_[s.o] INTO v_unsure FROM unnest(resent_ords_) AS s(o)
         WHERE s.o <> ALL (v_skip)
           AND NOT EXISTS (SELECT FROM headgate.jobs j WHERE j.tenant_no = tenant_nos_[s.o] AND j.id = ids_[s.o])
           AND NOT EXISTS (SELECT FROM headgate.archive a WHERE a.tenant_no = tenant_nos_[s.o] AND a.id = ids_[s.o])
         LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'id: at % it cannot be known whether job % has been submitted and has run since this transaction '
                'began; leave the id out (pass a key to submit only once), or use READ COMMITTED',
                upper(current_setting('transaction_isolation')), v_unsure
                USING ERRCODE = 'invalid_transaction_state', HINT = 'headgate code: isolation_level';
        END IF;
        v_left_out := v_left_out || resent_ords_;
    END IF;

    WITH made AS (
        INSERT INTO headgate.jobs (id, rank_at, created_at, run_at, tenant_no, topic_no, rank_class, priority,
                                   max_attempts, epoch, policy_no, state, flags, headers, payload)
        SELECT u.id, v_now_us + u.n + coalesce(u.rank_offset, 0), v_now, d.run_at, u.tenant_no, u.topic_no,
               coalesce(u.rank_class, -1), coalesce(u.priority, 0), coalesce(u.max_attempts, 20),
               v_epoch, coalesce(u.policy_no, 1),
               CASE WHEN u.flags & 256 /* waits */ <> 0 THEN 4
                    WHEN d.run_at > v_now THEN 2
                    -- With a limit key: into its key's line, below.
                    WHEN cardinality(limit_ords_) > 0 AND limit_ords_[width_bucket(u.n::int, limit_ords_)] = u.n THEN 4
                    ELSE 0 END,
               CASE WHEN octet_length(u.payload) > 1024 THEN 1 ELSE 0 END
                 + CASE WHEN cardinality(tag_ords_) > 0 AND u.n = ANY (tag_ords_) THEN 2 ELSE 0 END
                 + CASE WHEN cardinality(limit_ords_) > 0 AND limit_ords_[width_bucket(u.n::int, limit_ords_)] = u.n THEN 4
                        ELSE 0 END
                 + coalesce(u.flags, 0),
               u.headers, CASE WHEN octet_length(u.payload) <= 1024 THEN u.payload END
          FROM unnest(tenant_nos_, ids_, topic_nos_, payloads_, priorities_, rank_classes_, rank_offsets_, delays_ms_,
                      run_ats_, max_attempts_, policy_nos_, headers_, flags_) WITH ORDINALITY
               AS u(tenant_no, id, topic_no, payload, priority, rank_class, rank_offset, delay_ms, run_at,
                    max_attempts, policy_no, headers, flags, n)
         CROSS JOIN LATERAL (SELECT coalesce(u.run_at, v_now + u.delay_ms * interval '1 ms', v_now) AS run_at) AS d
         WHERE cardinality(v_left_out) = 0 OR u.n <> ALL (v_left_out)
         ORDER BY u.tenant_no, u.id     -- two flushes may carry the same jobs, in any order: no deadlock
        ON CONFLICT (tenant_no, id) DO NOTHING
        RETURNING tenant_no, id, topic_no, state, rank_class, rank_at),
    counted AS (
        INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
        SELECT m.tenant_no, m.topic_no, -1 /* none */, m.state, count(*), v_now FROM made m GROUP BY 1, 2, 4),
    arrived AS (      -- one range per topic and priority: the ranks of a flush are neighbours (arrived_v1.sql)
        INSERT INTO headgate.arrivals (topic_no, rank_class, rank_from, rank_to)
        SELECT m.topic_no, m.rank_class, min(m.rank_at), max(m.rank_at) FROM made m WHERE m.state = 0 /* pending */ GROUP BY 1,
               2)
    SELECT array_agg(m.tenant_no), array_agg(m.id) INTO v_new_tenants, v_new_ids FROM made m;

    -- The plain case ends here: all ids were new, everything is in, and nothing was sent twice lately.
    v_special := cardinality(resent_ords_) > 0 OR coalesce(cardinality(v_new_ids), 0) < v_count
             OR EXISTS (SELECT FROM headgate.resent_ids);
    IF v_special THEN
        -- Inserted just now, though sent before (or remembered as sent again): did the job finish meanwhile?
        SELECT coalesce(array_agg(u.n), '{}') INTO v_suspect
          FROM unnest(tenant_nos_, ids_) WITH ORDINALITY AS u(tenant_no, id, n)
         WHERE (u.tenant_no, u.id) IN (SELECT * FROM unnest(v_new_tenants, v_new_ids))
           AND (u.n = ANY (resent_ords_)
                OR EXISTS (SELECT FROM headgate.resent_ids r WHERE r.tenant_no = u.tenant_no AND r.id = u.id));
        SELECT coalesce(array_agg(s.o), '{}') INTO v_undo FROM unnest(v_suspect) AS s(o)
         WHERE EXISTS (SELECT FROM headgate.archive a WHERE a.tenant_no = tenant_nos_[s.o] AND a.id = ids_[s.o])
            -- A copy, as new, of an id already remembered: its job was made, and has since been discarded.
            OR s.o <> ALL (resent_ords_);
        IF cardinality(v_undo) > 0 THEN
            WITH gone AS (
                DELETE FROM headgate.jobs j
                 WHERE j.tenant_no = ANY (ARRAY(SELECT DISTINCT tenant_nos_[o] FROM unnest(v_undo) AS o))
                   AND j.id = ANY (ARRAY(SELECT ids_[o] FROM unnest(v_undo) AS o))
                   AND ((j.tenant_no, j.id) IN (SELECT tenant_nos_[o], ids_[o] FROM unnest(v_undo) AS o)) IS TRUE
                RETURNING j.tenant_no, j.topic_no, j.state)
            INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at)
            SELECT g.tenant_no, g.topic_no, g.state, -1 /* none */, count(*), v_now FROM gone g GROUP BY 1, 2, 3;
        END IF;
        INSERT INTO headgate.resent_ids (tenant_no, id, expires_at)
        SELECT tenant_nos_[s.o], ids_[s.o], v_now + interval '1 hour' FROM unnest(resent_ords_) AS s(o)
         WHERE s.o <> ALL (v_skip) ORDER BY 1, 2
        ON CONFLICT (tenant_no, id) DO UPDATE SET expires_at = excluded.expires_at;
        -- What was there first, live or finished, in one snapshot; an edited body counts as the same one.
        SELECT array_agg(u.n::int), array_agg((
               CASE WHEN f.id IS NULL OR f.flags & 8 /* payload_edited */ <> 0
                      OR (f.topic_no = u.topic_no AND coalesce(f.payload, p.payload) = u.payload)
                    THEN 1 ELSE 2 END)::smallint)
          INTO v_old_ords, v_old_receipts
          FROM unnest(tenant_nos_, ids_, topic_nos_, payloads_) WITH ORDINALITY AS u(tenant_no, id, topic_no, payload, n)
          LEFT JOIN LATERAL (
               (SELECT j.id, j.topic_no, j.flags, j.payload FROM headgate.jobs j
                 WHERE j.tenant_no = u.tenant_no AND j.id = u.id LIMIT 1)
               UNION ALL
               (SELECT a.id, a.topic_no, a.flags, a.payload FROM headgate.archive a
                 WHERE a.tenant_no = u.tenant_no AND a.id = u.id LIMIT 1)
               LIMIT 1) AS f ON true
          LEFT JOIN LATERAL (SELECT x.payload FROM headgate.payloads x
                              WHERE x.tenant_no = u.tenant_no AND x.id = u.id AND f.flags & 1 /* payload_apart */ <> 0
                                 LIMIT 1) AS p ON true
         WHERE u.n <> ALL (v_skip)
           AND (u.n = ANY (v_undo)
                OR NOT EXISTS (SELECT FROM unnest(v_new_tenants, v_new_ids) AS w(tenant_no, id)
                                WHERE w.tenant_no = u.tenant_no AND w.id = u.id));
        RETURN QUERY SELECT o.n, o.r, ids_[o.n], NULL::bigint[] FROM unnest(v_old_ords, v_old_receipts) AS o(n, r);
    END IF;

    IF EXISTS (SELECT FROM unnest(payloads_) AS p(payload) WHERE octet_length(p.payload) > 1024) THEN
        INSERT INTO headgate.payloads (tenant_no, id, payload)
        SELECT u.tenant_no, u.id, u.payload
          FROM unnest(tenant_nos_, ids_, payloads_) WITH ORDINALITY AS u(tenant_no, id, payload, n)
         WHERE octet_length(u.payload) > 1024 AND u.n <> ALL (v_undo)
           AND (u.tenant_no, u.id) IN (SELECT * FROM unnest(v_new_tenants, v_new_ids))
        -- The job is new: what is there is of one with its id that retention is removing (retire_chunk_v1.sql).
        ON CONFLICT (tenant_no, id) DO UPDATE SET payload = excluded.payload;
    END IF;
    IF cardinality(tag_ords_) > 0 THEN
        -- The jobs are new: a tag that is there is of one with its id that retention is removing (retire_chunk_v1.sql).
        IF EXISTS (SELECT FROM headgate.retention_days r WHERE r.leaving) THEN
            DELETE FROM headgate.job_tags t USING unnest(tag_ords_) AS o(n)
             WHERE o.n <> ALL (v_undo) AND t.tenant_no = tenant_nos_[o.n] AND t.job_id = ids_[o.n]
               AND (tenant_nos_[o.n], ids_[o.n]) IN (SELECT * FROM unnest(v_new_tenants, v_new_ids));
        END IF;
        INSERT INTO headgate.job_tags (tenant_no, tag, job_id)
        SELECT DISTINCT tenant_nos_[t.o], t.tag, ids_[t.o] FROM unnest(tag_ords_, tags_) AS t(o, tag)
         WHERE t.o <> ALL (v_undo)
           AND (tenant_nos_[t.o], ids_[t.o]) IN (SELECT * FROM unnest(v_new_tenants, v_new_ids))
         ORDER BY 1, 2, 3
        ON CONFLICT DO NOTHING;
    END IF;
    IF cardinality(key_ords_) > 0 AND 2 = ANY (v_old_receipts) THEN
        -- A key won for a job that was not made, because another body has that id: the key must stay free.
        DELETE FROM headgate.idempotency_keys k
         USING unnest(key_ords_, keys_) AS t(o, key), unnest(v_old_ords, v_old_receipts) AS o(n, r)
         WHERE o.n = t.o AND o.r = 2
           AND k.tenant_no = tenant_nos_[t.o] AND k.key = t.key AND k.topic_no = topic_nos_[t.o] AND k.job_id = ids_[t.o];
    END IF;
    IF cardinality(limit_ords_) > 0 THEN
        PERFORM headgate.enter_line_v1(tenant_nos_, ids_, topic_nos_, limit_ords_, limit_keys_, v_undo, v_new_tenants, v_new_ids);
    END IF;
END $$;
