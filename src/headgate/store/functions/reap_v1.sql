-- The watchdog: ends attempts whose lease has run out, at most n_, as Failed("lease expired"). Work that another
-- instance is settling or reaping right now is skipped. Returns what was reaped. floor_ leaves out the
-- dead prefix of the running index: every attempt that began before it has ended (see oldest_running_v1).
CREATE FUNCTION headgate.reap_v1(n_ int, floor_ timestamptz)
RETURNS TABLE (tenant_no int, id uuid, state smallint, run_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_tenants int[];
    v_ids     uuid[];
    v_epochs  bigint[];
    v_one     int;
    v_now     timestamptz := headgate.clock_v1();
BEGIN
    -- explain: lapsed
    SELECT array_agg(l.tenant_no), array_agg(l.id), array_agg(l.epoch) INTO v_tenants, v_ids, v_epochs
      FROM (SELECT j.tenant_no, j.id, j.epoch FROM headgate.jobs j                -- index: jobs_running
             WHERE j.state = 1 AND j.claimed_at >= floor_ AND j.lease_until < v_now
             ORDER BY j.claimed_at LIMIT n_ FOR UPDATE SKIP LOCKED) AS l;
    -- explain: end
    FOR v_one IN SELECT DISTINCT t FROM unnest(v_tenants) AS t ORDER BY t LOOP
        RETURN QUERY
        SELECT v_one, g.ids[o.ord], o.state, o.run_at
          FROM (SELECT array_agg(u.i) AS ids, array_agg(u.e) AS epochs, count(*)::int AS n
                  FROM unnest(v_tenants, v_ids, v_epochs) AS u(t, i, e) WHERE u.t = v_one) AS g
         CROSS JOIN LATERAL headgate.settle_other_v1(
               v_one, g.ids, g.epochs, array_fill(5::smallint, ARRAY[g.n]), array_fill(NULL::bigint, ARRAY[g.n]),
               array_fill(false, ARRAY[g.n]), array_fill(NULL::text, ARRAY[g.n]),
               array_fill('LeaseExpired'::text, ARRAY[g.n]),
               array_fill('lease expired: the worker was not heard of in time'::text, ARRAY[g.n]),
               array_fill(NULL::text, ARRAY[g.n])) AS o
         WHERE o.receipt = 0;
    END LOOP;
END $$;

-- Where the next sweep may start: the start of the oldest attempt that still runs.
CREATE FUNCTION headgate.oldest_running_v1(floor_ timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    SELECT j.claimed_at FROM headgate.jobs j WHERE j.state = 1 AND j.claimed_at >= floor_ ORDER BY j.claimed_at LIMIT 1
$$;
