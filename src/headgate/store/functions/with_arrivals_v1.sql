-- Ranges to look at: those given, and those with arrivals, as one ascending list per topic without overlaps.
CREATE FUNCTION headgate.with_arrivals_v1(
    INOUT topics_ int[], INOUT class_from_ int[], INOUT rank_from_ bigint[], INOUT class_to_ int[], INOUT rank_to_ bigint[],
    arrival_topics_ int[], arrival_classes_ int[], arrival_froms_ bigint[], arrival_tos_ bigint[])
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
    SELECT array_agg(m.topic_no ORDER BY m.topic_no, m.low), array_agg(m.low[1]::int ORDER BY m.topic_no, m.low),
           array_agg(m.low[2] ORDER BY m.topic_no, m.low), array_agg(m.high[1]::int ORDER BY m.topic_no, m.low),
           array_agg(m.high[2] ORDER BY m.topic_no, m.low)
      FROM (SELECT i.topic_no, min(i.low) AS low, max(i.high) AS high
              FROM (SELECT s.topic_no, s.low, s.high,
                           count(*) FILTER (WHERE s.low > s.before) OVER (PARTITION BY s.topic_no ORDER BY s.low, s.high
                                                                          ROWS UNBOUNDED PRECEDING) AS island
                      FROM (SELECT r.topic_no, r.low, r.high,
                                   max(r.high) OVER (PARTITION BY r.topic_no ORDER BY r.low, r.high
                                                     ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
                              FROM (SELECT u.topic_no, ARRAY[u.class_from, u.rank_from] AS low,
                                           ARRAY[u.class_to, u.rank_to] AS high
                                      FROM unnest(topics_, class_from_, rank_from_, class_to_, rank_to_)
                                           AS u(topic_no, class_from, rank_from, class_to, rank_to)
                                     UNION ALL
                                    SELECT a.topic_no, ARRAY[a.rank_class, a.rank_from], ARRAY[a.rank_class, a.rank_to + 1]
                                      FROM unnest(arrival_topics_, arrival_classes_, arrival_froms_, arrival_tos_)
                                           AS a(topic_no, rank_class, rank_from, rank_to)) AS r) AS s) AS i
             GROUP BY i.topic_no, i.island) AS m
$$;
