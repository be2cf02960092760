-- Locks the running jobs among those given, in key order, for a call that would else come to them in parts: a session that waits
-- for row locks takes them in that order, or two such calls would wait for each other. tenants_/counts_ cut ids_ into
-- runs, in any order; a tenant may have several. What they use of limits is locked behind them all.
CREATE FUNCTION headgate.lock_jobs_v1(tenants_ int[], counts_ int[], ids_ uuid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_tenant int;
    v_ids    uuid[];
    v_held   uuid[];
    v_topics int[];
    v_limits jsonb := '[]';
    v_one    record;
BEGIN
    FOR v_tenant, v_ids IN
        SELECT p.tenant_no, array_agg(p.id)
          FROM (SELECT r.tenant_no, unnest(ids_[r.till - r.n + 1 : r.till]) AS id
                  FROM (SELECT u.tenant_no, u.n, (sum(u.n) OVER (ORDER BY u.o))::int AS till
                          FROM unnest(tenants_, counts_) WITH ORDINALITY AS u(tenant_no, n, o)) AS r) AS p
         GROUP BY 1 ORDER BY 1
    LOOP
        SELECT array_agg(l.id) FILTER (WHERE l.flags & 4 /* limit_key */ <> 0),
               array_agg(l.topic_no) FILTER (WHERE l.flags & 128 /* counted */ <> 0)
          INTO v_held, v_topics
          FROM (SELECT j.id, j.topic_no, j.flags FROM headgate.jobs j
                 WHERE j.tenant_no = v_tenant AND j.id = ANY (v_ids) AND j.state + 0 = 1 /* running */
                    ORDER BY j.id FOR UPDATE) AS l;
        IF v_held IS NOT NULL OR v_topics IS NOT NULL THEN
            v_limits := v_limits || jsonb_build_object('tenant', v_tenant, 'topics', v_topics, 'ids', v_held);
        END IF;
    END LOOP;
    FOR v_one IN SELECT l.tenant, l.topics, l.ids
                   FROM jsonb_to_recordset(v_limits) AS l(tenant int, topics int[], ids uuid[]) ORDER BY l.tenant LOOP
        PERFORM headgate.lock_usage_v1(v_one.tenant, v_one.topics, v_one.ids);
    END LOOP;
END $$;
