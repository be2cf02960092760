-- Numbers for a tenant, its topics and its retry policies, made on first use. Read first: names are almost always known, and
-- an INSERT … ON CONFLICT burns an identity value even when it inserts nothing.
--
-- A tenant has a quota of topics and of policies. It is checked here, and only for names that are new: so all instances and
-- SQL submits agree, and a known name costs nothing. If the new names of a call do not all fit, none of them is made: they have
-- no row in the answer, and one row without a name tells the quota. Nothing is locked for it: transactions that make names at
-- the same moment do not see each other's, and may pass the quota by as many.
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
DECLARE
    v_new  text[];
    v_most int;
BEGIN
    v_new := ARRAY(SELECT DISTINCT n FROM unnest(names_) AS n
                    WHERE NOT EXISTS (SELECT FROM headgate.topics k WHERE k.tenant_no = tenant_ AND k.name = n));
    IF cardinality(v_new) > 0 THEN
        SELECT t.max_topics INTO v_most FROM headgate.tenants t WHERE t.tenant_no = tenant_;
        IF cardinality(v_new) + (SELECT count(*) FROM headgate.topics k WHERE k.tenant_no = tenant_) > v_most THEN
            RETURN QUERY SELECT NULL::text, v_most, NULL::bigint, NULL::int, NULL::int, NULL::boolean;
        ELSE      -- or there is no such tenant, and the key says so
            -- Sorted, so that two callers with the same new names wait for each other in one order.
            INSERT INTO headgate.topics AS t (tenant_no, name)
            SELECT tenant_, n FROM unnest(v_new) AS n ORDER BY n
            ON CONFLICT ON CONSTRAINT topics_tenant_no_name_key DO NOTHING;
        END IF;
    END IF;
    RETURN QUERY SELECT t.name, t.topic_no, t.ageing_step_us, t.max_attempts, t.policy_no, coalesce(l.keyed, false)
                   FROM headgate.topics t LEFT JOIN headgate.topic_limits l ON l.topic_no = t.topic_no
                  WHERE t.tenant_no = tenant_ AND t.name = ANY (names_);
END $$;

-- Parallel arrays, and answers by ord; ord 0 is the quota. Delays are given as the text of an array: in an array of arrays
-- all must have one length.
CREATE FUNCTION headgate.intern_policies_v1(
    tenant_ int, kinds_ smallint[], bases_ms_ bigint[], caps_ms_ bigint[], delays_ms_ text[])
RETURNS TABLE (ord int, policy_no int)
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
            RETURN QUERY SELECT 0, coalesce(v_most, 0);
        ELSE
            INSERT INTO headgate.retry_policies (tenant_no, kind, base_ms, cap_ms, delays_ms)
            SELECT DISTINCT tenant_, kinds_[o], bases_ms_[o], caps_ms_[o], delays_ms_[o]::bigint[] FROM unnest(v_new) AS o
             ORDER BY 2, 3, 4, 5
            ON CONFLICT DO NOTHING;
        END IF;
    END IF;
    RETURN QUERY
    SELECT u.n::int, f.policy_no
      FROM unnest(kinds_, bases_ms_, caps_ms_, delays_ms_) WITH ORDINALITY AS u(kind, base_ms, cap_ms, delays_ms, n)
      JOIN LATERAL (SELECT p.policy_no FROM headgate.retry_policies p
                     WHERE p.tenant_no IN (0, tenant_) AND p.kind = u.kind AND p.base_ms = u.base_ms
                       AND p.cap_ms = u.cap_ms AND p.delays_ms = u.delays_ms::bigint[] LIMIT 1) AS f ON true;
END $$;

-- After any change of a topic, also by hand, instances read it again (headgate.topics.changed_by).
CREATE FUNCTION headgate.topic_changed_v1() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.changed_by := pg_current_xact_id();
    RETURN NEW;
END $$;
CREATE TRIGGER topic_changed BEFORE UPDATE ON headgate.topics
    FOR EACH ROW EXECUTE FUNCTION headgate.topic_changed_v1();
