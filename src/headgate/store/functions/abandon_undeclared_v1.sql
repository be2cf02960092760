-- A worker is back and has said what it still holds: what it was sent, by whichever instance, and does not declare was
-- never received, and goes back to its topic at no cost. worker_ is as on the rows, with its incarnation: another process of
-- the same name keeps what it runs. Rare (a reconnect), so the running index is read as a whole.
CREATE FUNCTION headgate.abandon_undeclared_v1(tenant_ int, worker_ text, held_ uuid[]) RETURNS SETOF uuid
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_ids    uuid[];
    v_epochs bigint[];
    v_n      int;
BEGIN
    -- For what is locked beside the jobs, such as a limit's count: others' heartbeats wait behind this.
    PERFORM set_config('lock_timeout', '100', true);
    SELECT array_agg(u.id), array_agg(u.epoch), count(*) INTO v_ids, v_epochs, v_n
      FROM (SELECT j.id, j.epoch FROM headgate.jobs j
             WHERE j.state = 1 /* running */ AND j.tenant_no = tenant_ AND j.worker = worker_ AND j.id <> ALL (held_)
             LIMIT 5000 FOR UPDATE SKIP LOCKED) AS u;
    IF v_n = 0 THEN RETURN; END IF;
    RETURN QUERY
    SELECT v_ids[o.ord] FROM headgate.settle_other_v1(
        tenant_, v_ids, v_epochs, array_fill(3 /* abandon */::smallint, ARRAY[v_n]), array_fill(NULL::bigint, ARRAY[v_n]),
        array_fill(false, ARRAY[v_n]), array_fill('not received: its connection was lost'::text, ARRAY[v_n]),
        array_fill(NULL::text, ARRAY[v_n]), array_fill(NULL::text, ARRAY[v_n]), array_fill(NULL::text, ARRAY[v_n])) AS o
     WHERE o.receipt = 0 /* applied */;
END $$;
