-- The headers of a job that a schedule makes: its handler sees the name and the occurrence. Their names
-- begin with a dot, so no header of a caller has them; other jobs need no column for this.
CREATE FUNCTION headgate.made_by_v1(headers_ jsonb, name_ text, occurrence_ timestamptz) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(headers_, '{}') || jsonb_build_object(
        '.schedule', name_, '.occurrence_us', (extract(epoch FROM occurrence_) * 1000000)::bigint::text)
$$;
