-- Arrivals: where jobs have become claimable, so that no claim anywhere passes them by (ADR 0021).
--
-- A claim leaves out the dead entries below its watermark. A job may become claimable there: a retry and a hand-back keep
-- their rank, a transaction commits long after its jobs were ranked. So all code that makes jobs claimable writes the key
-- ranges of their ranks here, in the same transaction: they are seen from its commit on, like the jobs. A claim reads what
-- was committed since the claim before it (the snapshot of that one says what it has seen), and looks there as well.

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
                                   u.rank_at - lag(u.rank_at) OVER (PARTITION BY u.topic_no, u.rank_class ORDER BY u.rank_at)
                                     > 10000 AS apart
                              FROM unnest(topics_, classes_, ranks_) AS u(topic_no, rank_class, rank_at)) AS s) AS g
             GROUP BY g.topic_no, g.rank_class, g.island) AS i
     GROUP BY i.topic_no, i.rank_class, i.island * 64 / greatest(64, i.islands)
$$;

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

-- Forgets arrivals that every claimer has seen, or goes without: at most once in apart_ms_, whichever instance comes.
--
-- Deleted is what was visible in the snapshot that the call before this one has left. The generation counts these calls. A
-- claimer tells the generation it saw with its own snapshot: one behind, that snapshot is newer than the one used for
-- deleting, so it has seen all that is gone; more than one behind, it must look from the head (claim_v1). By age alone
-- nothing may be deleted: a row can be an hour old when its transaction commits.
--
-- At most most_ rows go in one call. If that is not all, the next call goes on with the same snapshot, as soon as it comes:
-- taken_at is 1970 so long. Every claimer that has the generation of the first of these calls, or one less, has seen what
-- they delete, so they leave it; the last one raises it again, with its new snapshot.
CREATE FUNCTION headgate.forget_arrivals_v1(apart_ms_ bigint, most_ int DEFAULT 100000) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_floor record;
    v_gone  int;
BEGIN
    SELECT f.snapshot, f.gone_to, f.taken_at INTO v_floor FROM headgate.arrivals_floor f
     WHERE f.one AND abs(extract(epoch FROM headgate.clock_v1() - f.taken_at)) * 1000 >= apart_ms_ FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN 0; END IF;
    IF pg_snapshot_xmax(v_floor.snapshot) > pg_snapshot_xmax(pg_current_snapshot()) THEN
        -- Restored into another cluster, whose transactions have other numbers: every claimer begins at the head.
        DELETE FROM headgate.arrivals;
        UPDATE headgate.arrivals_floor f
           SET generation = f.generation + 2, gone_to = '0', snapshot = pg_current_snapshot(), taken_at = headgate.clock_v1();
        RETURN 0;
    END IF;
    -- From where the last call ended: the entries before it are dead.
    DELETE FROM headgate.arrivals a
     WHERE a.ctid = ANY (ARRAY(SELECT x.ctid FROM headgate.arrivals x
                                WHERE x.xid >= v_floor.gone_to AND x.xid < pg_snapshot_xmax(v_floor.snapshot)
                                  AND pg_visible_in_snapshot(x.xid, v_floor.snapshot)
                                ORDER BY x.xid LIMIT most_));
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    IF v_gone = most_ THEN
        IF v_floor.taken_at <> timestamptz 'epoch' THEN
            UPDATE headgate.arrivals_floor f SET generation = f.generation + 1, taken_at = timestamptz 'epoch';
        END IF;
        RETURN v_gone;
    END IF;
    UPDATE headgate.arrivals_floor f
       SET generation = f.generation + 1, gone_to = pg_snapshot_xmin(v_floor.snapshot), snapshot = pg_current_snapshot(),
           taken_at = headgate.clock_v1();
    RETURN v_gone;
END $$;
