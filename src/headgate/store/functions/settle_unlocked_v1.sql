-- settle_v1 for a flush of which some row is locked by another transaction: those rows are left out and answered with
-- receipt 5 (locked), the others are settled at once. One caller's lock delays no other caller.
--
-- Left out is what runs and cannot be locked at once: settle_v1 locks nothing else. What runs under another epoch is stale,
-- locked or not, for epochs only grow. A row that is left out has an id that no job has.
CREATE FUNCTION headgate.settle_unlocked_v1(
    tenants_ int[], counts_ int[], ids_ uuid[], epochs_ bigint[], results_ bytea[],
    other_tenants_ int[], other_counts_ int[], other_ids_ uuid[], other_epochs_ bigint[], other_kinds_ smallint[],
    other_delays_ms_ bigint[], other_permanents_ boolean[], other_reasons_ text[],
    error_types_ text[], error_messages_ text[], error_traces_ text[], lock_ms_ int)
RETURNS TABLE (ord int, receipt smallint, state smallint, run_at timestamptz, note text, topic_no int)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_nestloop = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_locked int[] := '{}';
    v_base   int := cardinality(ids_);
    v_one    record;
BEGIN
    PERFORM set_config('lock_timeout', lock_ms_::text, true);      -- for what is locked as a whole, or beside the jobs
    FOR v_one IN SELECT l.ord, l.ours FROM headgate.locked_ords_v1(tenants_, counts_, ids_, epochs_) AS l LOOP
        v_locked := v_locked || v_one.ord;
        ids_[v_one.ord] := '00000000-0000-0000-0000-000000000000';
        epochs_[v_one.ord] := NULL;
        RETURN QUERY
        SELECT v_one.ord, CASE WHEN v_one.ours THEN 5 /* locked */ ELSE 2 /* stale */ END::smallint, 1 /* running */::smallint,
               NULL::timestamptz, NULL::text, NULL::int;
    END LOOP;
    FOR v_one IN SELECT l.ord, l.ours
                   FROM headgate.locked_ords_v1(other_tenants_, other_counts_, other_ids_, other_epochs_) AS l LOOP
        v_locked := v_locked || v_base + v_one.ord;
        other_ids_[v_one.ord] := '00000000-0000-0000-0000-000000000000';
        other_epochs_[v_one.ord] := NULL;
        RETURN QUERY
        SELECT v_base + v_one.ord, CASE WHEN v_one.ours THEN 5 /* locked */ ELSE 2 /* stale */ END::smallint,
               1 /* running */::smallint, NULL::timestamptz, NULL::text, NULL::int;
    END LOOP;
    RETURN QUERY
    SELECT s.ord, s.receipt, s.state, s.run_at, s.note, s.topic_no
      FROM headgate.settle_v1(
               tenants_, counts_, ids_, epochs_, results_, other_tenants_, other_counts_, other_ids_, other_epochs_,
               other_kinds_, other_delays_ms_, other_permanents_, other_reasons_, error_types_, error_messages_,
               error_traces_, lock_ms_) AS s
     WHERE s.note IS NOT NULL OR s.ord <> ALL (v_locked);
END $$;
