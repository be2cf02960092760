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
            -- Locked: of two submits of one id, the second waits here, before it removes anything.
            EXECUTE format('SELECT array_agg(l.id), array_agg(l.flags), array_agg(l.state), array_agg(l.created_at), '
                           'array_agg(l.finished_at) FROM (SELECT a.id, a.flags, a.state, a.created_at, a.finished_at '
                           'FROM headgate.%I a WHERE a.tenant_no = $1 AND a.id = ANY ($2) ORDER BY a.id FOR UPDATE) AS l',
                           'archive_' || to_char(v_day, 'YYYYMMDD'))
               INTO v_ids, v_flags, v_states, v_created, v_finished USING tenant_, ids_;
        EXCEPTION WHEN undefined_table THEN
            CONTINUE;      -- it was dropped just now
        END;
        IF v_ids IS NOT NULL THEN      -- a later statement: what the first has made meanwhile is there, and its rows are its own
            SELECT array_agg(u.id), array_agg(u.flags), array_agg(u.state), array_agg(u.created_at), array_agg(u.finished_at)
              INTO v_ids, v_flags, v_states, v_created, v_finished
              FROM unnest(v_ids, v_flags, v_states, v_created, v_finished) AS u(id, flags, state, created_at, finished_at)
             WHERE NOT EXISTS (SELECT FROM headgate.jobs j WHERE j.tenant_no = tenant_ AND j.id = u.id OFFSET 0)
               AND NOT EXISTS (SELECT FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id = u.id OFFSET 0);
        END IF;
        IF v_ids IS NOT NULL THEN
            PERFORM headgate.forget_jobs_v1(array_fill(tenant_, ARRAY[cardinality(v_ids)]), v_ids, v_flags, v_states,
                                            v_created, v_finished);
        END IF;
    END LOOP;
END $$;
