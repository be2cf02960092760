-- Record that these parents have ended: mark their dependencies (those of the given children; NULL: all) as fulfilled or
-- broken, and note each affected child for unblock_ready_v1. True if there was one. Each dependency is written once, by the end of its one
-- parent; the child's row is not touched.
CREATE FUNCTION headgate.meet_v1(tenant_ int, ids_ uuid[], states_ smallint[], children_ uuid[]) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off
SET enable_nestloop = on SET jit = off AS $$
BEGIN
    -- Parent by parent, whatever the statistics say: the other way round reads every unmet dependency of the tenant.
    -- `met + 0` keeps the index of unmet ones out of it. The lock keeps each row where it was found.
    -- explain: meet
    WITH found AS MATERIALIZED (
        SELECT d.ctid, CASE WHEN e.state = 5 /* completed */ OR d.accepts_failure THEN 1 ELSE e.state END AS met
          FROM unnest(ids_, states_) AS e(id, state)
         CROSS JOIN LATERAL (
               SELECT d.ctid, d.needs = 1 OR d.on_failure = 1 AS accepts_failure
                 FROM headgate.job_dependencies d                                     -- index: job_dependencies_pkey
                WHERE d.tenant_no = tenant_ AND d.parent_id = e.id AND d.met + 0 = 0
                  AND (children_ IS NULL OR d.child_id = ANY (children_))
                  -- on_failure 2: the child keeps waiting, since the parent may be redriven, until the parent is removed.
                  AND (e.state IN (5, 8) /* completed, gone */ OR d.needs = 1 OR d.on_failure <> 2)
                  FOR UPDATE) AS d),
    given AS (
        UPDATE headgate.job_dependencies d SET met = f.met FROM found f WHERE d.ctid = f.ctid RETURNING d.child_id)
    INSERT INTO headgate.dependency_checks (tenant_no, child_id)
    SELECT DISTINCT tenant_, t.child_id FROM given t;
    -- explain: end
    RETURN FOUND;
END $$;
