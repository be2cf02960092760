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
    -- Log lines have no flag: setting one would wait for the row lock of the job's outcome. If the table is empty, this costs one read.
    -- Not later ones: a job with the same id may have been submitted since, a day after this one at the earliest.
    -- One look-up for each job (OFFSET 0): else all lines of the tenant may be read.
    IF EXISTS (SELECT FROM headgate.job_logs) THEN
        DELETE FROM headgate.job_logs d
         USING (SELECT g.ctid FROM unnest(tenants_, ids_, finished_) AS u(tenant_no, id, last)
                 CROSS JOIN LATERAL (SELECT l.ctid FROM headgate.job_logs l
                                      WHERE l.tenant_no = u.tenant_no AND l.job_id = u.id
                                        AND l.stored_at <= u.last + interval '1 hour' OFFSET 0) AS g) AS x
         WHERE d.ctid = x.ctid;      -- lines are never changed: it is where it was, or gone
    END IF;
    IF v_all & 3687 /* has_other_rows */ = 0 THEN RETURN; END IF;
    IF v_all & 1 <> 0 THEN              -- 1: payload in headgate.payloads
        DELETE FROM headgate.payloads p USING unnest(tenants_, ids_, flags_) AS u(tenant_no, id, flags)
         WHERE u.flags & 1 /* payload_apart */ <> 0 AND p.tenant_no = u.tenant_no AND p.id = u.id;
    END IF;
    IF v_all & 2 <> 0 THEN              -- 2: tags
        DELETE FROM headgate.job_tags t USING unnest(tenants_, ids_, flags_) AS u(tenant_no, id, flags)
         WHERE u.flags & 2 /* tagged */ <> 0 AND t.tenant_no = u.tenant_no AND t.job_id = u.id;
    END IF;
    IF v_all & 4 <> 0 THEN              -- 4: limit key
        DELETE FROM headgate.job_limit_keys k USING unnest(tenants_, ids_, flags_) AS u(tenant_no, id, flags)
         WHERE u.flags & 4 /* limit_key */ <> 0 AND k.tenant_no = u.tenant_no AND k.job_id = u.id;
    END IF;
    IF v_all & 32 <> 0 THEN             -- 32: others wait for it
        -- Children that still wait for a redrive are cancelled: the parent is removed.
        FOR v_tenant, v_ids IN SELECT u.tenant_no, array_agg(u.id) FROM unnest(tenants_, ids_, flags_) AS u(tenant_no, id, flags)
                                WHERE u.flags & 32 /* has_dependants */ <> 0 GROUP BY 1 ORDER BY 1 LOOP
            PERFORM headgate.ended_v1(v_tenant, v_ids, array_fill(8::smallint, ARRAY[cardinality(v_ids)]));
        END LOOP;
        -- Bounded for each parent; what is over goes with the children.
        DELETE FROM headgate.job_dependencies d
         USING unnest(tenants_, ids_, flags_) AS u(tenant_no, id, flags)
         CROSS JOIN LATERAL (SELECT x.child_id FROM headgate.job_dependencies x
                              WHERE x.tenant_no = u.tenant_no AND x.parent_id = u.id AND x.met = 1 LIMIT 1000) AS c
         WHERE u.flags & 32 /* has_dependants */ <> 0 AND d.tenant_no = u.tenant_no AND d.parent_id = u.id
           AND d.child_id = c.child_id;
    END IF;
    IF v_all & 512 <> 0 THEN            -- 512: was made to wait for others
        DELETE FROM headgate.job_dependencies d USING unnest(tenants_, ids_, flags_) AS u(tenant_no, id, flags)
         WHERE u.flags & 512 /* has_parents */ <> 0 AND d.tenant_no = u.tenant_no AND d.child_id = u.id;
    END IF;
    IF v_all & 1024 <> 0 THEN           -- 1024: part of a batch, which continues counting it
        WITH gone AS (
            DELETE FROM headgate.batch_jobs b USING unnest(tenants_, ids_, flags_, states_) AS u(tenant_no, id, flags, state)
             WHERE u.flags & 1024 /* in_batch */ <> 0 AND b.tenant_no = u.tenant_no AND b.job_id = u.id
            RETURNING b.tenant_no, b.batch_id, u.state)
        UPDATE headgate.batches b
           SET gone_completed = b.gone_completed + k.completed, gone_dead = b.gone_dead + k.dead,
               gone_cancelled = b.gone_cancelled + k.cancelled
          FROM (SELECT g.tenant_no, g.batch_id, count(*) FILTER (WHERE g.state = 5 /* completed */) AS completed,
                       count(*) FILTER (WHERE g.state = 6 /* dead */) AS dead,
                       count(*) FILTER (WHERE g.state = 7 /* cancelled */) AS cancelled
                  FROM gone g GROUP BY 1, 2 ORDER BY 1, 2) AS k
         WHERE b.tenant_no = k.tenant_no AND b.id = k.batch_id;
    END IF;
    IF v_all & 2048 <> 0 THEN           -- 2048: had a unique key
        DELETE FROM headgate.unique_jobs q USING unnest(tenants_, ids_, flags_) AS u(tenant_no, id, flags)
         WHERE u.flags & 2048 /* unique */ <> 0 AND q.tenant_no = u.tenant_no AND q.job_id = u.id AND NOT q.live;
    END IF;
    IF v_all & 64 <> 0 THEN             -- 64: made by a schedule
        DELETE FROM headgate.schedule_jobs s USING unnest(tenants_, ids_, flags_) AS u(tenant_no, id, flags)
         WHERE u.flags & 64 /* from_schedule */ <> 0 AND s.tenant_no = u.tenant_no AND s.job_id = u.id;
    END IF;
END $$;
