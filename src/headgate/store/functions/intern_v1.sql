-- Numbers for a tenant and its topics, made on first use. Read first: names are almost always known, and an
-- INSERT … ON CONFLICT burns an identity value even when it inserts nothing.
CREATE FUNCTION headgate.intern_tenant_v1(name_ text) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_no int;
BEGIN
    SELECT t.tenant_no INTO v_no FROM headgate.tenants t WHERE t.name = name_;
    IF v_no IS NULL THEN
        INSERT INTO headgate.tenants (name) VALUES (name_) ON CONFLICT (name) DO NOTHING;
        SELECT t.tenant_no INTO v_no FROM headgate.tenants t WHERE t.name = name_;   -- also when another one won
    END IF;
    RETURN v_no;
END $$;

CREATE FUNCTION headgate.intern_topics_v1(tenant_ int, names_ text[])
RETURNS TABLE (name text, topic_no int, ageing_step_us bigint, max_attempts int, policy_no int, keyed boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Sorted, so that two callers with the same new names wait for each other in one order.
    INSERT INTO headgate.topics AS t (tenant_no, name)
    SELECT DISTINCT tenant_, n FROM unnest(names_) AS n
     WHERE NOT EXISTS (SELECT FROM headgate.topics k WHERE k.tenant_no = tenant_ AND k.name = n)
     ORDER BY n
    ON CONFLICT ON CONSTRAINT topics_tenant_no_name_key DO NOTHING;
    RETURN QUERY SELECT t.name, t.topic_no, t.ageing_step_us, t.max_attempts, t.policy_no, coalesce(l.keyed, false)
                   FROM headgate.topics t LEFT JOIN headgate.topic_limits l ON l.topic_no = t.topic_no
                  WHERE t.tenant_no = tenant_ AND t.name = ANY (names_);
END $$;

CREATE FUNCTION headgate.intern_policy_v1(kind_ smallint, base_ms_ bigint, cap_ms_ bigint, delays_ms_ bigint[])
RETURNS int LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_no int;
BEGIN
    LOOP
        SELECT p.policy_no INTO v_no FROM headgate.retry_policies p
         WHERE p.kind = kind_ AND p.base_ms = base_ms_ AND p.cap_ms = cap_ms_ AND p.delays_ms = delays_ms_;
        IF v_no IS NOT NULL THEN RETURN v_no; END IF;
        INSERT INTO headgate.retry_policies (kind, base_ms, cap_ms, delays_ms)
        VALUES (kind_, base_ms_, cap_ms_, delays_ms_) ON CONFLICT DO NOTHING;
    END LOOP;
END $$;
