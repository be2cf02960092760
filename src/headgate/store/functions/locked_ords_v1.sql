-- Locks those of these rows that run and are not locked; returns the ords of the others, and whether the row
-- runs under the given epoch.
CREATE FUNCTION headgate.locked_ords_v1(tenants_ int[], counts_ int[], ids_ uuid[], epochs_ bigint[])
RETURNS TABLE (ord int, ours boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_from   int := 1;
    v_to     int;
    v_got    uuid[];
BEGIN
    FOR v_run IN 1 .. cardinality(tenants_) LOOP
        v_to := v_from + counts_[v_run] - 1;
        v_got := ARRAY(SELECT j.id FROM headgate.jobs j
                        WHERE j.tenant_no = tenants_[v_run] AND j.id = ANY (ids_[v_from:v_to]) AND j.state + 0 = 1 /* running */
                          FOR UPDATE SKIP LOCKED);
        -- In a statement of its own: what was released or settled meanwhile is seen as it is now.
        RETURN QUERY
        SELECT v_from + u.n::int - 1, j.epoch = u.epoch
          FROM unnest(ids_[v_from:v_to], epochs_[v_from:v_to]) WITH ORDINALITY AS u(id, epoch, n)
         CROSS JOIN LATERAL (SELECT j.epoch FROM headgate.jobs j
                              WHERE j.tenant_no = tenants_[v_run] AND j.id = u.id AND j.state + 0 = 1 /* running */
                              LIMIT 1) AS j
         WHERE u.id NOT IN (SELECT g FROM unnest(v_got) AS g);
        v_from := v_to + 1;
    END LOOP;
END $$;
