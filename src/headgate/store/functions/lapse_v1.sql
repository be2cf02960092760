-- Ends these attempts of one tenant as lapsed: locked by the caller.
CREATE FUNCTION headgate.lapse_v1(tenant_ int, ids_ uuid[], epochs_ bigint[])
RETURNS TABLE (id uuid, state smallint, run_at timestamptz)
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT ids_[o.ord], o.state, o.run_at
      FROM headgate.settle_other_v1(
               tenant_, ids_, epochs_, array_fill(5::smallint, ARRAY[cardinality(ids_)]),
               array_fill(NULL::bigint, ARRAY[cardinality(ids_)]), array_fill(false, ARRAY[cardinality(ids_)]),
               array_fill(NULL::text, ARRAY[cardinality(ids_)]),
               array_fill('LeaseExpired'::text, ARRAY[cardinality(ids_)]),
               array_fill('lease expired: the worker was lost, or did not renew it in time'::text, ARRAY[cardinality(ids_)]),
               array_fill(NULL::text, ARRAY[cardinality(ids_)])) AS o
     WHERE o.receipt = 0 /* applied */
$$;
