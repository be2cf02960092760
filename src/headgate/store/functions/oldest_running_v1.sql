-- Where the next sweep may start: the start of the oldest attempt that still runs.
CREATE FUNCTION headgate.oldest_running_v1(floor_ timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    SELECT j.claimed_at FROM headgate.jobs j WHERE j.state = 1 /* running */ AND j.claimed_at >= floor_
     ORDER BY j.claimed_at LIMIT 1
$$;
