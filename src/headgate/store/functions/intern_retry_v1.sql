-- The number of a retry policy that a caller of headgate.submit has given as JSON, made on first use:
--     {"kind": "exponential", "base_ms": 1000, "cap_ms": 3600000}    {"kind": "explicit", "delays_ms": [1000, 60000]}
CREATE FUNCTION headgate.intern_retry_v1(tenant_ int, retry_ jsonb) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_names   text[] := ARRAY['quadratic', 'fixed', 'linear', 'exponential', 'exponential_equal_jitter',
                              'exponential_full_jitter', 'explicit'];      -- in the order of their numbers
    v_kind    int := array_position(v_names, retry_ ->> 'kind') - 1;
    v_delays  jsonb := coalesce(retry_ -> 'delays_ms', '[]');
    v_base    numeric;
    v_cap     numeric;
    v_problem text;
    v_made    record;
BEGIN
    -- The same limits as domain/limits.py and domain/backoff.py; a test holds them together.
    v_problem := CASE
        WHEN jsonb_typeof(retry_) <> 'object' OR v_kind IS NULL THEN 'kind must be one of ' || array_to_string(v_names, ', ')
        WHEN EXISTS (SELECT FROM jsonb_object_keys(retry_) AS k WHERE k NOT IN ('kind', 'base_ms', 'cap_ms', 'delays_ms')) THEN
            'has another field than kind, base_ms, cap_ms and delays_ms'
        WHEN jsonb_typeof(coalesce(retry_ -> 'base_ms', '1')) <> 'number'
          OR jsonb_typeof(coalesce(retry_ -> 'cap_ms', '1')) <> 'number' THEN 'base_ms and cap_ms must be numbers'
        WHEN jsonb_typeof(v_delays) <> 'array' THEN 'delays_ms must be a list'
        WHEN (v_kind = 6 /* explicit */) <> (jsonb_array_length(v_delays) BETWEEN 1 AND 100)
          OR EXISTS (SELECT FROM jsonb_array_elements(v_delays) AS d WHERE CASE WHEN jsonb_typeof(d) = 'number'
                        THEN d::numeric NOT BETWEEN 0 AND 2592000000 OR d::numeric % 1 <> 0 ELSE true END) THEN
            'delays_ms must be a list of 1 to 100 whole numbers from 0 to 2592000000 for explicit, and empty for all others' END;
    IF v_problem IS NULL THEN
        v_base := coalesce((retry_ ->> 'base_ms')::numeric, 1000);
        v_cap := coalesce((retry_ ->> 'cap_ms')::numeric, greatest(v_base, 86400000));
        v_problem := CASE WHEN v_base NOT BETWEEN 1 AND 2592000000 OR v_cap NOT BETWEEN v_base AND 2592000000
                            OR v_base % 1 <> 0 OR v_cap % 1 <> 0
                     THEN 'base_ms must be a whole number from 1 to 2592000000, and cap_ms one from base_ms to 2592000000' END;
    END IF;
    IF v_problem IS NOT NULL THEN
        RAISE EXCEPTION 'retry: %', v_problem USING ERRCODE = 'invalid_parameter_value', HINT = 'headgate code: invalid_input';
    END IF;
    SELECT p.policy_no, p.quota INTO v_made FROM headgate.intern_policies_v1(
        tenant_, ARRAY[v_kind]::smallint[], ARRAY[v_base]::bigint[], ARRAY[v_cap]::bigint[],
        ARRAY[(SELECT coalesce(array_agg(d::numeric::bigint ORDER BY n), '{}')::text
                 FROM jsonb_array_elements_text(v_delays) WITH ORDINALITY AS e(d, n))]) AS p;
    IF v_made.quota IS NOT NULL THEN
        RAISE EXCEPTION 'retry: this policy is new, and the tenant has its quota of % policies; use one that exists, or raise '
            'max_policies of the tenant with headgate tenant set', v_made.quota
            USING ERRCODE = 'configuration_limit_exceeded', HINT = 'headgate code: quota_exceeded';
    END IF;
    IF v_made.policy_no IS NULL THEN      -- made by another transaction after the snapshot of this one
        RAISE EXCEPTION 'retry: another transaction has made this policy meanwhile; run this one again'
            USING ERRCODE = 'serialization_failure', HINT = 'headgate code: store_busy';
    END IF;
    RETURN v_made.policy_no;
END $$;
