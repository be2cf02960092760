-- settle_v1, or with skip_locked_ settle_unlocked_v1, while a stream of events wants completions: notes those of this flush,
-- in its transaction. Only called while headgate.event_recording is on: otherwise a completion costs nothing of this.
CREATE FUNCTION headgate.settle_recorded_v1(
    tenants_ int[], counts_ int[], ids_ uuid[], epochs_ bigint[], results_ bytea[],
    other_tenants_ int[], other_counts_ int[], other_ids_ uuid[], other_epochs_ bigint[], other_kinds_ smallint[],
    other_delays_ms_ bigint[], other_permanents_ boolean[], other_reasons_ text[],
    error_types_ text[], error_messages_ text[], error_traces_ text[], skip_locked_ boolean)
RETURNS TABLE (ord int, receipt smallint, state smallint, run_at timestamptz, note text, topic_no int)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_at   timestamptz := headgate.clock_v1();
    v_odd  int[] := '{}';          -- completions that were not applied: an applied one gives no row
    v_from int := 1;
    v_to   int;
BEGIN
    FOR ord, receipt, state, run_at, note, topic_no IN
        SELECT s.ord, s.receipt, s.state, s.run_at, s.note, s.topic_no
          FROM headgate.settle_unlocked_v1(
                   tenants_, counts_, ids_, epochs_, results_, other_tenants_, other_counts_, other_ids_, other_epochs_,
                   other_kinds_, other_delays_ms_, other_permanents_, other_reasons_, error_types_, error_messages_,
                   error_traces_, 15) AS s
         WHERE skip_locked_
         UNION ALL
        SELECT s.ord, s.receipt, s.state, s.run_at, s.note, s.topic_no
          FROM headgate.settle_v1(
                   tenants_, counts_, ids_, epochs_, results_, other_tenants_, other_counts_, other_ids_, other_epochs_,
                   other_kinds_, other_delays_ms_, other_permanents_, other_reasons_, error_types_, error_messages_,
                   error_traces_, 100) AS s
         WHERE NOT skip_locked_
    LOOP
        IF ord <= cardinality(ids_) THEN v_odd := v_odd || ord; END IF;
        RETURN NEXT;
    END LOOP;
    FOR v_run IN 1 .. cardinality(tenants_) LOOP
        v_to := v_from + counts_[v_run] - 1;
        -- From a little earlier: the clock may step back meanwhile. The bound leaves out the days before.
        INSERT INTO headgate.completions (tenant_no, at, ids, topic_nos, epochs, attempts)
        SELECT tenants_[v_run], max(a.finished_at), array_agg(a.id), array_agg(a.topic_no), array_agg(a.epoch),
               array_agg(a.attempt)
          FROM headgate.archive a                                                              -- index: archive_pkey
         WHERE a.tenant_no = tenants_[v_run] AND a.finished_at >= v_at - interval '10 seconds'
           AND a.id = ANY (ARRAY(SELECT u.id FROM unnest(ids_[v_from:v_to]) WITH ORDINALITY AS u(id, n)
                                  WHERE v_from + u.n - 1 <> ALL (v_odd)))
        HAVING count(*) > 0;
        v_from := v_to + 1;
    END LOOP;
END $$;
