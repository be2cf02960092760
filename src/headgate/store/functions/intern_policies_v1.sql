-- Parallel arrays, and answers by ord; a row with a quota says that they do not fit in it. Delays are given as the text of
-- an array: in an array of arrays all must have one length.
CREATE FUNCTION headgate.intern_policies_v1(
    tenant_ int, kinds_ smallint[], bases_ms_ bigint[], caps_ms_ bigint[], delays_ms_ text[])
RETURNS TABLE (ord int, policy_no int, quota int)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_new  int[];
    v_most int;
BEGIN
    v_new := ARRAY(SELECT u.n::int
                     FROM unnest(kinds_, bases_ms_, caps_ms_, delays_ms_) WITH ORDINALITY
                          AS u(kind, base_ms, cap_ms, delays_ms, n)
                    WHERE NOT EXISTS (SELECT FROM headgate.retry_policies p
                                       WHERE p.tenant_no IN (0, tenant_) AND p.kind = u.kind AND p.base_ms = u.base_ms
                                         AND p.cap_ms = u.cap_ms AND p.delays_ms = u.delays_ms::bigint[]));
    IF cardinality(v_new) > 0 THEN
        SELECT t.max_policies INTO v_most FROM headgate.tenants t WHERE t.tenant_no = tenant_;
        IF v_most IS NULL
           OR cardinality(v_new) + (SELECT count(*) FROM headgate.retry_policies p WHERE p.tenant_no = tenant_) > v_most THEN
            RETURN QUERY SELECT NULL::int, NULL::int, coalesce(v_most, 0);
        ELSE
            INSERT INTO headgate.retry_policies (tenant_no, kind, base_ms, cap_ms, delays_ms)
            SELECT DISTINCT tenant_, kinds_[o], bases_ms_[o], caps_ms_[o], delays_ms_[o]::bigint[] FROM unnest(v_new) AS o
             ORDER BY 2, 3, 4, 5
            ON CONFLICT DO NOTHING;
        END IF;
    END IF;
    RETURN QUERY
    SELECT u.n::int, f.policy_no, NULL::int
      FROM unnest(kinds_, bases_ms_, caps_ms_, delays_ms_) WITH ORDINALITY AS u(kind, base_ms, cap_ms, delays_ms, n)
      JOIN LATERAL (SELECT p.policy_no FROM headgate.retry_policies p
                     WHERE p.tenant_no IN (0, tenant_) AND p.kind = u.kind AND p.base_ms = u.base_ms
                       AND p.cap_ms = u.cap_ms AND p.delays_ms = u.delays_ms::bigint[] LIMIT 1) AS f ON true;
END $$;
