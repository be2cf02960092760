-- These jobs of one tenant, those of them that are claimable, have just become so, or have a new place.
CREATE FUNCTION headgate.arrived_v1(tenant_ int, ids_ uuid[]) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    INSERT INTO headgate.arrivals (topic_no, rank_class, rank_from, rank_to)
    SELECT r.topic_no, r.rank_class, r.rank_from, r.rank_to
      FROM (SELECT array_agg(j.topic_no) AS topics, array_agg(j.rank_class) AS classes, array_agg(j.rank_at) AS ranks
              FROM headgate.jobs j
             WHERE j.tenant_no = tenant_ AND j.id = ANY (ids_) AND j.state + 0 = 0 /* pending */) AS a
     CROSS JOIN LATERAL headgate.key_ranges_v1(a.topics, a.classes, a.ranks) AS r
$$;
