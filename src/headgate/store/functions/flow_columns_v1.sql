-- What one change of state counts as (see headgate.flow_buckets). It has no settings of its own, and uses nothing but built-in
-- operators, so that PostgreSQL inlines it.
CREATE FUNCTION headgate.flow_columns_v1(from_ smallint, to_ smallint, n_ bigint)
RETURNS TABLE (submitted bigint, started bigint, completed bigint, retried bigint, failed bigint, dead bigint,
               cancelled bigint, pending_change bigint)
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN from_ = -1 /* it did not exist */ THEN n_ ELSE 0 END,
           CASE WHEN to_ = 1 /* running */ THEN n_ ELSE 0 END,
           CASE WHEN to_ = 5 /* completed */ THEN n_ ELSE 0 END,
           CASE WHEN from_ = 1 /* running */ AND to_ = 3 /* retrying */ THEN n_ ELSE 0 END,
           CASE WHEN from_ = 1 /* running */ AND to_ IN (3, 6) /* retrying, dead */ THEN n_ ELSE 0 END,
           CASE WHEN to_ = 6 /* dead */ THEN n_ ELSE 0 END,
           CASE WHEN to_ = 7 /* cancelled */ THEN n_ ELSE 0 END,
           CASE WHEN to_ = 0 /* pending */ THEN n_ ELSE 0 END - CASE WHEN from_ = 0 THEN n_ ELSE 0 END
$$;
