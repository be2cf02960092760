-- The shortest and the longest time that anything is kept.
CREATE FUNCTION headgate.keep_bounds_v1(OUT shortest_ms bigint, OUT longest_ms bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT least(d.completed_ms, d.dead_ms, d.cancelled_ms, t.low), greatest(d.completed_ms, d.dead_ms, d.cancelled_ms, t.high)
      FROM headgate.retention d
     CROSS JOIN (SELECT min(least(keep_completed_ms, keep_dead_ms, keep_cancelled_ms)) AS low,
                        max(greatest(keep_completed_ms, keep_dead_ms, keep_cancelled_ms)) AS high FROM headgate.topics) AS t
$$;
