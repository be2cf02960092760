-- When that many tokens will be there; NULL: never, the bucket is too small.
CREATE FUNCTION headgate.tokens_at_v1(
    wanted_ double precision, tokens_ double precision, count_ int, period_ms_ bigint, burst_ int, now_ timestamptz)
RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN wanted_ > coalesce(burst_, count_) THEN NULL
                -- A little more than needed: a timer that fires a rounding error early would fire twice.
                ELSE now_ + (ceil(greatest(0, wanted_ - tokens_) * period_ms_ / count_ * 1000) + 100) * interval '1 us' END
$$;
