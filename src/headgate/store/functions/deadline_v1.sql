-- The headers of a job as they are stored: a deadline given as a span from now becomes a time (domain/headers.py).
CREATE FUNCTION headgate.deadline_v1(headers_ jsonb, now_ timestamptz) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN headers_ ? '.deadline_ms' THEN headers_ - '.deadline_ms' || jsonb_build_object('.deadline_us', (
               (extract(epoch FROM now_) * 1000000)::bigint + (headers_ ->> '.deadline_ms')::bigint * 1000)::text)
           ELSE headers_ END
$$;
