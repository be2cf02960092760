-- The wait before the next attempt, in milliseconds: domain/backoff.py in SQL, to the same integer.
-- The jitter is drawn from (job, attempt) rather than from a random source: the model test can then predict it, and a
-- flush that is sent again after a lost reply gives the same answer.
CREATE FUNCTION headgate.retry_delay_ms_v1(policy_no_ int, attempt_ int, id_ uuid) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE p.kind
             WHEN 0 THEN least(p.cap_ms, p.base_ms * attempt_ * attempt_)
             WHEN 1 THEN p.base_ms
             WHEN 2 THEN least(p.cap_ms, p.base_ms * attempt_)
             WHEN 3 THEN e.d
             WHEN 4 THEN e.d - ((e.d * e.jitter) >> 21)
             WHEN 5 THEN (e.d * e.jitter) >> 20
             WHEN 6 THEN p.delays_ms[least(attempt_, cardinality(p.delays_ms))]
           END
      FROM headgate.retry_policies p
     CROSS JOIN LATERAL (
           SELECT least(p.cap_ms, p.base_ms << least(attempt_ - 1, 31)) AS d,
                  ('x' || left(md5(id_::text || ':' || attempt_), 5))::bit(20)::int::bigint AS jitter) AS e
     WHERE p.policy_no = policy_no_
$$;
