-- The ids of a tenant among the first running or waiting (scheduled, retrying) jobs of all tenants, and how many of these
-- there are, at most look_at_ + 1. With the owner's rights, so that the LIMIT counts the jobs of all tenants: policies
-- would hide others' before it counts, and the walk could pass all of them. Who is confined to a tenant gets ids of that one.
CREATE FUNCTION headgate.first_live_v1(tenant_ int, choice_ text, look_at_ int, OUT ids uuid[], OUT looked int)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
    v_tenant int := tenant_;
BEGIN
    IF current_setting('role') = 'headgate_tenant'       -- current_user is the owner here
       AND tenant_ IS DISTINCT FROM nullif(current_setting('headgate.tenant_no', true), '')::int THEN
        v_tenant := NULL;
    END IF;
    IF choice_ = 'running' THEN
        SELECT array_agg(s.id) FILTER (WHERE s.tenant_no = v_tenant), count(*) INTO ids, looked
          FROM (SELECT j.id, j.tenant_no FROM headgate.jobs j WHERE j.state = 1 /* running */  -- index: jobs_running
                 ORDER BY j.claimed_at LIMIT look_at_ + 1) AS s;
    ELSIF choice_ = 'waiting' THEN
        SELECT array_agg(s.id) FILTER (WHERE s.tenant_no = v_tenant), count(*) INTO ids, looked
          FROM (SELECT j.id, j.tenant_no FROM headgate.jobs j
                 WHERE j.state IN (2, 3) /* scheduled, retrying */             -- index: jobs_due
                 ORDER BY j.run_at LIMIT look_at_ + 1) AS s;
    END IF;
END $$;
