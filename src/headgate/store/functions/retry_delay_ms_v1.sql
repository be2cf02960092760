-- The wait before the next attempt, in milliseconds: domain/backoff.py in SQL, to the same integer.
-- The jitter is drawn from (job, attempt) rather than from a random source: the model test can then predict it, and a
-- flush that is sent again after a lost reply gives the same answer.
-- A single expression, bound when it is made (RETURN …), so that the planner can put it in the place of the call.
CREATE FUNCTION headgate.retry_delay_ms_v1(
    kind_ smallint, base_ms_ bigint, cap_ms_ bigint, delays_ms_ bigint[], attempt_ int, id_ uuid)
RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE kind_
    WHEN 0 THEN least(cap_ms_, base_ms_ * attempt_ * attempt_)
    WHEN 1 THEN base_ms_
    WHEN 2 THEN least(cap_ms_, base_ms_ * attempt_)
    WHEN 3 THEN least(cap_ms_, base_ms_ << least(attempt_ - 1, 31))
    WHEN 4 THEN least(cap_ms_, base_ms_ << least(attempt_ - 1, 31))
              - ((least(cap_ms_, base_ms_ << least(attempt_ - 1, 31))
                  * ('x' || left(md5(id_::text || ':' || attempt_), 5))::bit(20)::int::bigint) >> 21)
    WHEN 5 THEN (least(cap_ms_, base_ms_ << least(attempt_ - 1, 31))
                  * ('x' || left(md5(id_::text || ':' || attempt_), 5))::bit(20)::int::bigint) >> 20
    WHEN 6 THEN delays_ms_[least(attempt_, cardinality(delays_ms_))]
END;
