-- What comes before the submit of jobs with dependencies, for one tenant and in the submit's transaction: takes unique keys,
-- writes dependencies and batch membership. Returns the ords that are not to be submitted as they are:
--   1 job_id is live under the unique key (and locked by us)   2 this very submit has changed job_id before
--   10 no such parent: job_id   11 no such batch: job_id
--   12 that batch is sealed: job_id                            13 another submit came in between: try again
--   20 the id is known already, and its dependencies are stored: submit it without them
-- scopes_: for each job 0, or a number in scope_nos_: its caller sees topics LIKE scope_topics_ of that number and no others,
-- so parents and batches of other topics do not exist for it (10, 11). Empty: all callers see everything.
-- For 1 to 13 nothing was written; for no ord returned, everything was, and must be taken back by remove_dependencies_v1 if the submit
-- then finds that it is no new job.
--
-- Locks: job rows in id order (holders of unique keys and parents together), then finished parents, batches, and unique
-- keys in their order. All job rows come first, because what ends a job holds its row when it comes to the rest. So a
-- holder or parent that we hold is live until we commit, and one that we could not lock has ended and reports it in a later
-- statement: no submit is swallowed by a job that has already ended, and no end of a parent is missed.
CREATE FUNCTION headgate.add_dependencies_v1(
    tenant_ int, ids_ uuid[], topics_ int[], resent_ boolean[], unique_ords_ int[], unique_keys_ text[],
    needs_ smallint[], on_failures_ smallint[], parent_ords_ int[], parents_ uuid[], batch_ords_ int[], batches_ uuid[],
    scopes_ int[], scope_nos_ int[], scope_topics_ text[])
RETURNS TABLE (ord int, code smallint, job_id uuid)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now      timestamptz := headgate.clock_v1();
    v_ords     int[] := '{}';       -- what is returned, and its parallel arrays
    v_codes    smallint[] := '{}';
    v_jobs     uuid[] := '{}';
    v_new_ords int[];
    v_new_codes smallint[];
    v_new_jobs uuid[];
    v_live     uuid[];              -- locked by us
    v_done     uuid[];              -- finished parents, with their states
    v_states   smallint[];
    v_kept     uuid[];
    v_made     uuid[];              -- dependencies written: parent, child, met
    v_children uuid[];
    v_mets     smallint[];
    v_members  uuid[];              -- batch members written
    v_out      uuid[];
    v_unique   boolean := cardinality(unique_ords_) > 0;
    v_parents  boolean := cardinality(parent_ords_) > 0;
BEGIN
    -- In one snapshot for all statements, a holder or parent that has ended meanwhile would still look alive.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'headgate.add_dependencies_v1 must run at READ COMMITTED' USING ERRCODE = 'invalid_transaction_state';
    END IF;
    IF EXISTS (SELECT FROM headgate.retention_days r WHERE r.leaving) THEN      -- rare, and soon over
        PERFORM headgate.forget_first_lives_v1(tenant_, ARRAY(
            SELECT i.id FROM unnest(ids_) AS i(id)
             WHERE NOT EXISTS (SELECT FROM headgate.jobs j WHERE j.tenant_no = tenant_ AND j.id = i.id)
               AND NOT EXISTS (SELECT FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id = i.id)));
    END IF;
    SELECT array_agg(u.n::int), array_agg(20::smallint), array_agg(u.id) INTO v_new_ords, v_new_codes, v_new_jobs
      FROM unnest(ids_, resent_) WITH ORDINALITY AS u(id, resent, n)
     -- OFFSET 0 here and below: each id is looked up. Else all rows of the tenant may be read into a hash table.
     WHERE EXISTS (SELECT FROM headgate.jobs j WHERE j.tenant_no = tenant_ AND j.id = u.id OFFSET 0)
        OR EXISTS (SELECT FROM headgate.unique_jobs q WHERE q.tenant_no = tenant_ AND q.job_id = u.id OFFSET 0)
        OR (u.resent AND EXISTS (SELECT FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id = u.id OFFSET 0));
    v_ords := v_ords || v_new_ords; v_codes := v_codes || v_new_codes; v_jobs := v_jobs || v_new_jobs;

    -- Before anything is locked, and what is missing together with what is out of sight: the answer must not differ, whatever
    -- else the job has.
    IF cardinality(scopes_) > 0 THEN
        SELECT array_agg(h.o), array_agg(h.code), array_agg(h.id) INTO v_new_ords, v_new_codes, v_new_jobs
          FROM (SELECT DISTINCT ON (r.o) r.o, r.code, r.id
                  FROM (SELECT p.o, 10::smallint, p.id FROM unnest(parent_ords_, parents_) AS p(o, id)
                        UNION ALL
                        SELECT t.o, 11::smallint, t.id FROM unnest(batch_ords_, batches_) AS t(o, id)) AS r(o, code, id)
                 CROSS JOIN LATERAL (SELECT array_agg(s.topic) AS topics FROM unnest(scope_nos_, scope_topics_) AS s(no, topic)
                                      WHERE s.no = scopes_[r.o]) AS seen
                 WHERE r.o <> ALL (v_ords) AND scopes_[r.o] > 0
                   AND CASE r.code
                       WHEN 10 THEN NOT EXISTS (
                            SELECT FROM headgate.jobs j JOIN headgate.topics n ON n.topic_no = j.topic_no
                             WHERE j.tenant_no = tenant_ AND j.id = r.id AND n.name LIKE ANY (seen.topics) OFFSET 0)
                           AND NOT EXISTS (
                            SELECT FROM headgate.archive a JOIN headgate.topics n ON n.topic_no = a.topic_no
                             WHERE a.tenant_no = tenant_ AND a.id = r.id AND n.name LIKE ANY (seen.topics) OFFSET 0)
                       ELSE NOT EXISTS (
                            SELECT FROM headgate.batches b
                             WHERE b.tenant_no = tenant_ AND b.id = r.id AND b.topics IS NOT NULL AND NOT EXISTS (
                                   SELECT FROM unnest(b.topics) AS o(name) WHERE (o.name LIKE ANY (seen.topics)) IS NOT TRUE)) END
                 ORDER BY r.o, r.code, r.id) AS h;
        v_ords := v_ords || v_new_ords; v_codes := v_codes || v_new_codes; v_jobs := v_jobs || v_new_jobs;
    END IF;

    IF v_unique OR v_parents THEN
        SELECT coalesce(array_agg(l.id), '{}') INTO v_live
          FROM (SELECT j.id FROM headgate.jobs j
                 WHERE j.tenant_no = tenant_
                   AND j.id = ANY (ARRAY(SELECT p.id FROM unnest(parent_ords_, parents_) AS p(o, id)
                                          WHERE p.o <> ALL (v_ords)
                                         UNION
                                         SELECT q.job_id FROM unnest(unique_ords_, unique_keys_) AS k(o, key)
                                           JOIN LATERAL (SELECT s.job_id FROM headgate.unique_jobs s
                                                          WHERE s.topic_no = topics_[k.o] AND s.key = k.key AND s.live
                                                         OFFSET 0) AS q ON true
                                          WHERE k.o <> ALL (v_ords)))
                 ORDER BY j.id FOR NO KEY UPDATE) AS l;
    END IF;
    IF v_unique THEN      -- a later statement: a holder that ended while we waited for its row has let go of the key
        -- Of two copies of one submit the second waits for the holder's row, and sees here what the first has done.
        SELECT array_agg(k.o), array_agg(2::smallint), array_agg(c.job_id) INTO v_new_ords, v_new_codes, v_new_jobs
          FROM unnest(unique_ords_) AS k(o)
          JOIN LATERAL (SELECT x.job_id FROM headgate.unique_calls x
                         WHERE x.tenant_no = tenant_ AND x.id = ids_[k.o] OFFSET 0) AS c ON true
         WHERE k.o <> ALL (v_ords);
        v_ords := v_ords || v_new_ords; v_codes := v_codes || v_new_codes; v_jobs := v_jobs || v_new_jobs;
        SELECT array_agg(k.o), array_agg((CASE WHEN q.job_id = ANY (v_live) THEN 1 ELSE 13 END)::smallint),
               array_agg(q.job_id)
          INTO v_new_ords, v_new_codes, v_new_jobs
          FROM unnest(unique_ords_, unique_keys_) AS k(o, key)
          JOIN LATERAL (SELECT s.job_id FROM headgate.unique_jobs s
                         WHERE s.topic_no = topics_[k.o] AND s.key = k.key AND s.live OFFSET 0) AS q ON true
         WHERE k.o <> ALL (v_ords);
        v_ords := v_ords || v_new_ords; v_codes := v_codes || v_new_codes; v_jobs := v_jobs || v_new_jobs;
    END IF;

    IF v_parents THEN     -- also later: a parent that is not live has finished, or never was
        SELECT array_agg(m.id), array_agg(f.state) INTO v_done, v_states
          FROM (SELECT DISTINCT p.id FROM unnest(parent_ords_, parents_) AS p(o, id)
                 WHERE p.o <> ALL (v_ords) AND p.id <> ALL (v_live)) AS m
          LEFT JOIN LATERAL (SELECT a.state FROM headgate.archive a
                              WHERE a.tenant_no = tenant_ AND a.id = m.id LIMIT 1) AS f ON true;
        -- Unknown; unless a redrive has brought it back between the two statements.
        SELECT array_agg(p.o), array_agg((CASE WHEN EXISTS (SELECT FROM headgate.jobs j
                                                             WHERE j.tenant_no = tenant_ AND j.id = p.id OFFSET 0)
                                               THEN 13 ELSE 10 END)::smallint), array_agg(p.id)
          INTO v_new_ords, v_new_codes, v_new_jobs
          FROM (SELECT DISTINCT ON (x.o) x.o, x.id FROM unnest(parent_ords_, parents_) AS x(o, id)
                  JOIN unnest(v_done, v_states) AS d(id, state) ON d.id = x.id AND d.state IS NULL
                 WHERE x.o <> ALL (v_ords) ORDER BY x.o, x.id) AS p;
        v_ords := v_ords || v_new_ords; v_codes := v_codes || v_new_codes; v_jobs := v_jobs || v_new_jobs;
        -- Who waits on for a finished parent to be redriven must learn when that ends: the mark goes with the row.
        SELECT array_agg(DISTINCT p.id) INTO v_kept
          FROM unnest(parent_ords_, parents_) AS p(o, id)
          JOIN unnest(v_done, v_states) AS d(id, state) ON d.id = p.id AND d.state IN (6, 7) /* dead, cancelled */
         WHERE p.o <> ALL (v_ords) AND needs_[p.o] = 0 AND on_failures_[p.o] = 2;
        IF v_kept IS NOT NULL THEN
            PERFORM FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id = ANY (v_kept) ORDER BY a.id FOR UPDATE;
            WITH marked AS (
                UPDATE headgate.archive a SET flags = a.flags | 32 /* has_dependants */
                 WHERE a.tenant_no = tenant_ AND a.id = ANY (v_kept)
                RETURNING a.id)
            SELECT array_agg(p.o), array_agg(13::smallint), array_agg(p.id) INTO v_new_ords, v_new_codes, v_new_jobs
              FROM unnest(parent_ords_, parents_) AS p(o, id)
             WHERE p.o <> ALL (v_ords) AND p.id = ANY (v_kept) AND p.id NOT IN (SELECT m.id FROM marked m);
            v_ords := v_ords || v_new_ords; v_codes := v_codes || v_new_codes; v_jobs := v_jobs || v_new_jobs;
        END IF;
    END IF;

    IF cardinality(batch_ords_) > 0 THEN
        -- Shared: many add members at once, and sealing waits for them all.
        PERFORM FROM headgate.batches b
          WHERE b.tenant_no = tenant_
            AND b.id = ANY (ARRAY(SELECT t.id FROM unnest(batch_ords_, batches_) AS t(o, id) WHERE t.o <> ALL (v_ords)))
          ORDER BY b.id FOR SHARE;
        SELECT array_agg(t.o), array_agg((CASE WHEN b.id IS NULL THEN 11 ELSE 12 END)::smallint), array_agg(t.id)
          INTO v_new_ords, v_new_codes, v_new_jobs
          FROM unnest(batch_ords_, batches_) AS t(o, id)
          LEFT JOIN LATERAL (SELECT x.id, x.sealed_at FROM headgate.batches x
                              WHERE x.tenant_no = tenant_ AND x.id = t.id OFFSET 0) AS b ON true
         WHERE t.o <> ALL (v_ords) AND (b.id IS NULL OR b.sealed_at IS NOT NULL);
        v_ords := v_ords || v_new_ords; v_codes := v_codes || v_new_codes; v_jobs := v_jobs || v_new_jobs;
    END IF;

    IF v_unique THEN
        WITH given AS MATERIALIZED (
            SELECT k.o, k.key, row_number() OVER (PARTITION BY topics_[k.o], k.key ORDER BY k.o) AS nth
              FROM unnest(unique_ords_, unique_keys_) AS k(o, key) WHERE k.o <> ALL (v_ords)),
        won AS (
            INSERT INTO headgate.unique_jobs (tenant_no, job_id, topic_no, key, live)
            SELECT tenant_, ids_[t.o], topics_[t.o], t.key, true FROM given t
             WHERE t.nth = 1 ORDER BY topics_[t.o], t.key        -- one order for everyone: no deadlock
            ON CONFLICT DO NOTHING
            RETURNING unique_jobs.job_id)
        SELECT array_agg(t.o), array_agg(13::smallint), array_agg(ids_[t.o]) INTO v_new_ords, v_new_codes, v_new_jobs
          FROM given t WHERE t.nth > 1 OR ids_[t.o] NOT IN (SELECT w.job_id FROM won w);
        v_ords := v_ords || v_new_ords; v_codes := v_codes || v_new_codes; v_jobs := v_jobs || v_new_jobs;
    END IF;

    IF v_parents THEN
        UPDATE headgate.jobs j SET flags = j.flags | 32 /* has_dependants */
         WHERE j.tenant_no = tenant_ AND j.flags & 32 /* has_dependants */ = 0
           AND j.id = ANY (ARRAY(SELECT p.id FROM unnest(parent_ords_, parents_) AS p(o, id)
                                  WHERE p.o <> ALL (v_ords) AND p.id = ANY (v_live)));
        WITH made AS (
            INSERT INTO headgate.job_dependencies AS d (tenant_no, parent_id, child_id, needs, on_failure, met)
            SELECT tenant_, p.id, ids_[p.o], needs_[p.o], on_failures_[p.o],
                   CASE WHEN f.state IS NULL THEN 0
                        WHEN f.state = 5 /* completed */ OR needs_[p.o] = 1 OR on_failures_[p.o] = 1 THEN 1
                        WHEN on_failures_[p.o] = 2 THEN 0 ELSE f.state END
              FROM unnest(parent_ords_, parents_) AS p(o, id)
              LEFT JOIN unnest(v_done, v_states) AS f(id, state) ON f.id = p.id
             WHERE p.o <> ALL (v_ords)
             ORDER BY p.id, ids_[p.o]
            ON CONFLICT DO NOTHING
            RETURNING d.parent_id, d.child_id, d.met)
        SELECT array_agg(m.parent_id), array_agg(m.child_id), array_agg(m.met) INTO v_made, v_children, v_mets FROM made m;
    END IF;
    IF cardinality(batch_ords_) > 0 THEN
        WITH joined AS (
            INSERT INTO headgate.batch_jobs AS m (tenant_no, batch_id, job_id)
            SELECT tenant_, t.id, ids_[t.o] FROM unnest(batch_ords_, batches_) AS t(o, id) WHERE t.o <> ALL (v_ords)
             ORDER BY 2, 3
            ON CONFLICT DO NOTHING
            RETURNING m.job_id)
        SELECT array_agg(m.job_id) INTO v_members FROM joined m;
    END IF;
    -- What was there already is another copy of the same submit, which came first and has committed meanwhile. It is not
    -- ours to take back, so what little we wrote beside it goes, and the next round knows the id.
    SELECT array_agg(c.o), array_agg(13::smallint), array_agg(ids_[c.o]) INTO v_new_ords, v_new_codes, v_new_jobs
      FROM (SELECT p.o FROM unnest(parent_ords_, parents_) AS p(o, id)
             WHERE p.o <> ALL (v_ords)
               AND NOT EXISTS (SELECT FROM unnest(v_made, v_children) AS m(parent, child)
                                WHERE m.parent = p.id AND m.child = ids_[p.o])
            UNION
            SELECT t.o FROM unnest(batch_ords_) AS t(o)
             WHERE t.o <> ALL (v_ords)
               AND NOT EXISTS (SELECT FROM unnest(v_members) AS m(id) WHERE m.id = ids_[t.o])) AS c;
    IF v_new_ords IS NOT NULL THEN
        DELETE FROM headgate.job_dependencies d USING unnest(v_made, v_children) AS m(parent, child)
         WHERE d.tenant_no = tenant_ AND d.parent_id = m.parent AND d.child_id = m.child AND m.child = ANY (v_new_jobs);
        DELETE FROM headgate.batch_jobs b
         WHERE b.tenant_no = tenant_ AND b.job_id = ANY (v_new_jobs) AND b.job_id = ANY (v_members);
        DELETE FROM headgate.unique_jobs q WHERE q.tenant_no = tenant_ AND q.job_id = ANY (v_new_jobs)
           AND q.job_id = ANY (ARRAY(SELECT ids_[k.o] FROM unnest(unique_ords_) AS k(o) WHERE k.o <> ALL (v_ords)));
        v_ords := v_ords || v_new_ords; v_codes := v_codes || v_new_codes; v_jobs := v_jobs || v_new_jobs;
    END IF;

    IF v_made IS NOT NULL THEN
        v_out := ARRAY(SELECT ids_[o.n] FROM unnest(v_ords) AS o(n));
        INSERT INTO headgate.job_events (tenant_no, job_id, at, kind, epoch, attempt, state, reason, detail)
        SELECT tenant_, m.child, v_now, 20 /* blocked */, 0, 0, 4 /* blocked */,
               'waits for ' || count(*) || CASE count(*) WHEN 1 THEN ' other job' ELSE ' other jobs' END,
               jsonb_build_object('parents', count(*), 'unmet', count(*) FILTER (WHERE m.met <> 1))
          FROM unnest(v_children, v_mets) AS m(child, met) WHERE m.child <> ALL (v_out) GROUP BY m.child;
        INSERT INTO headgate.dependency_checks (tenant_no, child_id)
        SELECT tenant_, m.child FROM unnest(v_children, v_mets) AS m(child, met) WHERE m.child <> ALL (v_out)
         GROUP BY m.child HAVING bool_and(m.met <> 0) OR bool_or(m.met > 1);
    END IF;
    IF v_members IS NOT NULL THEN
        INSERT INTO headgate.job_dependencies (tenant_no, parent_id, child_id, needs, on_failure, met)
        SELECT tenant_, ids_[t.o], b.callback_id, b.needs, b.on_failure, 0
          FROM unnest(batch_ords_, batches_) AS t(o, id)
          JOIN LATERAL (SELECT x.callback_id, x.needs, x.on_failure FROM headgate.batches x
                         WHERE x.tenant_no = tenant_ AND x.id = t.id AND x.callback_id IS NOT NULL OFFSET 0) AS b ON true
         WHERE t.o <> ALL (v_ords)
         ORDER BY 2, 3;
    END IF;
    RETURN QUERY SELECT o.ord, o.code, o.job_id FROM unnest(v_ords, v_codes, v_jobs) AS o(ord, code, job_id);
END $$;
