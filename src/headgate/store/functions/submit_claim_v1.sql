-- A plain flush of submits (no keys, tags, limit keys or dependencies, nothing sent before, due now) whose worker already waits:
-- submits and claims in one call. Returns what submit_v1 returns (the first four columns) and what claim_v1 returns (the
-- others), for the arguments of both.
CREATE FUNCTION headgate.submit_claim_v1(
    tenant_nos_ int[], ids_ uuid[], topic_nos_ int[], payloads_ bytea[],
    priorities_ int[], rank_classes_ int[], rank_offsets_ bigint[], delays_ms_ bigint[], run_ats_ timestamptz[],
    max_attempts_ int[], policy_nos_ int[], headers_ jsonb[], resent_ords_ int[],
    key_ords_ int[], keys_ text[], key_hashes_ bytea[], key_windows_ms_ bigint[], tag_ords_ int[], tags_ text[],
    limit_ords_ int[], limit_keys_ text[], flags_ smallint[], new_id_until_ timestamptz,
    tenant_ int, topics_ int[], range_topics_ int[], class_from_ int[], rank_from_ bigint[], class_to_ int[],
    rank_to_ bigint[], hints_ uuid[], n_ int, owner_ int, workers_ text[], runs_ int[], lease_ms_ bigint,
    seen_ text, generation_ bigint)
RETURNS TABLE (ord int, receipt smallint, job_id uuid, detail bigint[],
               id uuid, topic_no int, epoch bigint, attempt int, max_attempts int, priority int, rank_class int,
               rank_at bigint, created_at timestamptz, lease_until timestamptz, worker text, headers jsonb, payload bytea,
               run_at timestamptz, note text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Each statement within these has a snapshot of its own, so the claim finds what was submitted.
    RETURN QUERY
    SELECT s.ord, s.receipt, s.job_id, s.detail, NULL::uuid, NULL::int, NULL::bigint, NULL::int, NULL::int, NULL::int, NULL::int,
           NULL::bigint, NULL::timestamptz, NULL::timestamptz, NULL::text, NULL::jsonb, NULL::bytea, NULL::timestamptz, NULL::text
      FROM headgate.submit_v1(tenant_nos_, ids_, topic_nos_, payloads_, priorities_, rank_classes_, rank_offsets_,
                              delays_ms_, run_ats_, max_attempts_, policy_nos_, headers_, resent_ords_, key_ords_, keys_,
                              key_hashes_, key_windows_ms_, tag_ords_, tags_, limit_ords_, limit_keys_, flags_,
                              new_id_until_) AS s;
    RETURN QUERY
    SELECT NULL::int, NULL::smallint, NULL::uuid, NULL::bigint[], c.id, c.topic_no, c.epoch, c.attempt, c.max_attempts,
           c.priority, c.rank_class, c.rank_at, c.created_at, c.lease_until, c.worker, c.headers, c.payload, c.run_at, c.note
      FROM headgate.claim_v1(tenant_, topics_, range_topics_, class_from_, rank_from_, class_to_, rank_to_, hints_, n_,
                             owner_, workers_, runs_, lease_ms_, seen_, generation_) AS c;
END $$;
