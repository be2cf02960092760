-- Tokens in a bucket now.
CREATE FUNCTION headgate.tokens_v1(
    tokens_ double precision, at_ timestamptz, count_ int, period_ms_ bigint, burst_ int, now_ timestamptz)
RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT least(coalesce(burst_, count_)::double precision,
                 coalesce(tokens_, coalesce(burst_, count_))
                   + greatest(0, extract(epoch FROM now_ - coalesce(at_, now_))::double precision) * 1000 * count_ / period_ms_)
$$;
