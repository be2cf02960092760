CREATE FUNCTION headgate.intern_topics_v1(tenant_ int, names_ text[])
RETURNS TABLE (name text, topic_no int, ageing_step_us bigint, max_attempts int, policy_no int, priority int, time_limit_ms bigint,
               lease_ms bigint, max_consumers int, payload_schema text, max_payload_bytes int, keyed boolean, quota int)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_new  text[];
    v_most int;
BEGIN
    v_new := ARRAY(SELECT DISTINCT n FROM unnest(names_) AS n
                    WHERE NOT EXISTS (SELECT FROM headgate.topics k WHERE k.tenant_no = tenant_ AND k.name = n));
    IF cardinality(v_new) > 0 THEN
        SELECT t.max_topics INTO v_most FROM headgate.tenants t WHERE t.tenant_no = tenant_;
        IF cardinality(v_new) + (SELECT count(*) FROM headgate.topics k WHERE k.tenant_no = tenant_) > v_most THEN
            RETURN QUERY SELECT NULL::text, NULL::int, NULL::bigint, NULL::int, NULL::int, NULL::int, NULL::bigint,
                                NULL::bigint, NULL::int, NULL::text, NULL::int, NULL::boolean, v_most;
        ELSE      -- or there is no such tenant: the foreign key fails
            -- Sorted, so that two callers with the same new names wait for each other in one order.
            INSERT INTO headgate.topics AS t (tenant_no, name)
            SELECT tenant_, n FROM unnest(v_new) AS n ORDER BY n
            ON CONFLICT ON CONSTRAINT topics_tenant_no_name_key DO NOTHING;
        END IF;
    END IF;
    RETURN QUERY SELECT t.name, t.topic_no, t.ageing_step_us, t.max_attempts, t.policy_no, t.priority,
                        t.time_limit_ms, t.lease_ms, t.max_consumers, t.payload_schema, t.max_payload_bytes,
                        coalesce(l.keyed, false), NULL::int
                   FROM headgate.topics t LEFT JOIN headgate.topic_limits l ON l.topic_no = t.topic_no
                  WHERE t.tenant_no = tenant_ AND t.name = ANY (names_);
END $$;
