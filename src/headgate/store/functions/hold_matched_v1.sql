-- Locks jobs of one tenant that an operation is about to change, finished or live ones, in the order of their ids, as the
-- verbs themselves do. Between this and the verb the filter is asked once more: what another session changed meanwhile is
-- then seen, and what is seen cannot change.
CREATE FUNCTION headgate.hold_matched_v1(tenant_ int, ids_ uuid[], finished_ boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    IF finished_ THEN
        PERFORM FROM headgate.archive a WHERE a.tenant_no = tenant_ AND a.id = ANY (ids_) ORDER BY a.id FOR UPDATE;
    ELSE
        PERFORM FROM headgate.jobs j WHERE j.tenant_no = tenant_ AND j.id = ANY (ids_) ORDER BY j.id FOR UPDATE;
    END IF;
END $$;
