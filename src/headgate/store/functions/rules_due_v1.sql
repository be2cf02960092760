-- The rules that are due for a day, as text: equal texts mean that a finished walk has left nothing to remove. First those
-- of topics without rules of their own (completed, dead, cancelled), then each topic that has some. NULL: none is due.
CREATE FUNCTION headgate.rules_due_v1(day_ date) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH age AS (
        SELECT floor(extract(epoch FROM headgate.clock_v1() - ((day_ + 1)::timestamp AT TIME ZONE 'UTC')) * 1000)::bigint AS ms),
    due AS (
        SELECT 0 AS topic_no, d.completed_ms <= a.ms AS completed, d.dead_ms <= a.ms AS dead, d.cancelled_ms <= a.ms AS cancelled
          FROM headgate.retention d, age a
         UNION ALL
        SELECT t.topic_no, coalesce(t.keep_completed_ms, d.completed_ms) <= a.ms, coalesce(t.keep_dead_ms, d.dead_ms) <= a.ms,
               coalesce(t.keep_cancelled_ms, d.cancelled_ms) <= a.ms
          FROM headgate.topics t, headgate.retention d, age a
         WHERE t.keep_completed_ms IS NOT NULL OR t.keep_dead_ms IS NOT NULL OR t.keep_cancelled_ms IS NOT NULL)
    SELECT CASE WHEN bool_or(u.completed OR u.dead OR u.cancelled) THEN
               string_agg(u.topic_no || ':' || u.completed::int || u.dead::int || u.cancelled::int, ' ' ORDER BY u.topic_no) END
      FROM due u
$$;
