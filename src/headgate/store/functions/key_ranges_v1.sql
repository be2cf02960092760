-- Key ranges that cover these ranks: neighbours less than 10 ms apart share one, and at most 64 are made for a topic and
-- class. Too wide a range costs reads, never a job.
CREATE FUNCTION headgate.key_ranges_v1(topics_ int[], classes_ int[], ranks_ bigint[])
RETURNS TABLE (topic_no int, rank_class int, rank_from bigint, rank_to bigint)
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
    SELECT i.topic_no, i.rank_class, min(i.rank_from), max(i.rank_to)
      FROM (SELECT g.topic_no, g.rank_class, min(g.rank_at) AS rank_from, max(g.rank_at) AS rank_to, g.island,
                   count(*) OVER (PARTITION BY g.topic_no, g.rank_class) AS islands
              FROM (SELECT s.topic_no, s.rank_class, s.rank_at,
                           count(*) FILTER (WHERE s.apart) OVER (PARTITION BY s.topic_no, s.rank_class ORDER BY s.rank_at
                                                                 ROWS UNBOUNDED PRECEDING) AS island
                      FROM (SELECT u.topic_no, u.rank_class, u.rank_at,
                                   -- No difference: that of two ranks of an ageing topic can be more than a bigint holds.
                                   u.rank_at > 10000
                                     + lag(u.rank_at) OVER (PARTITION BY u.topic_no, u.rank_class ORDER BY u.rank_at) AS apart
                              FROM unnest(topics_, classes_, ranks_) AS u(topic_no, rank_class, rank_at)) AS s) AS g
             GROUP BY g.topic_no, g.rank_class, g.island) AS i
     GROUP BY i.topic_no, i.rank_class, i.island * 64 / greatest(64, i.islands)
$$;
