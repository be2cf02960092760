-- Ends these attempts of one tenant, whose leases have expired: locked by the caller. lost_: expire_lost_v1 has ended the lease,
-- since the worker did not reconnect. The errors are those of domain/outcomes.py.
CREATE FUNCTION headgate.expire_leases_v1(tenant_ int, ids_ uuid[], epochs_ bigint[], lost_ boolean[])
RETURNS TABLE (id uuid, state smallint, run_at timestamptz)
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT ids_[o.ord], o.state, o.run_at
      FROM headgate.settle_other_v1(
               tenant_, ids_, epochs_, array_fill(5::smallint /* lease_expired */, ARRAY[cardinality(ids_)]),
               array_fill(NULL::bigint, ARRAY[cardinality(ids_)]), array_fill(false, ARRAY[cardinality(ids_)]),
               array_fill(NULL::text, ARRAY[cardinality(ids_)]),
               ARRAY(SELECT CASE WHEN l.lost THEN 'WorkerLost' ELSE 'LeaseExpired' END
                       FROM unnest(lost_) WITH ORDINALITY AS l(lost, n) ORDER BY l.n),
               ARRAY(SELECT CASE WHEN l.lost THEN 'the worker lost its connection and did not reconnect in time'
                                 ELSE 'the worker did not renew the lease in time' END
                       FROM unnest(lost_) WITH ORDINALITY AS l(lost, n) ORDER BY l.n),
               array_fill(NULL::text, ARRAY[cardinality(ids_)])) AS o
     WHERE o.receipt = 0 /* applied */
$$;
