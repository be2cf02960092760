-- The slow way to promote and reap, for when the indexes lead to a page that cannot be read: block by block, row by row. What
-- cannot be read or written is left where it is, with a row that says why (problem: a job; unreadable: the block `number`); all else
-- continues. One call looks at n_ blocks from from_ on; more: there are others behind them. The rows are as those of tick_v1.
CREATE FUNCTION headgate.rescue_v1(from_ int, n_ int, reap_ boolean)
RETURNS TABLE (kind text, tenant_no int, topic_no int, id uuid, number bigint, at timestamptz, detail text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now    timestamptz := headgate.clock_v1();
    v_blocks int := pg_relation_size('headgate.jobs') / current_setting('block_size')::int;
    v_rows   record;
BEGIN
    PERFORM set_config('lock_timeout', '5', true);
    FOR v_block IN from_ .. least(from_ + n_, v_blocks) - 1 LOOP
        BEGIN
            -- The states are hidden from the planner: a partial index would lead to every page.
            SELECT array_agg(d.tenant_no) AS tenants, array_agg(d.id) AS ids, array_agg(d.topic_no) AS topics,
                   array_agg(d.state) AS states, array_agg((d.flags & 4 /* limit_key */)::smallint) AS tos,
                   array_agg(d.epoch) AS epochs, array_agg(d.lost) AS lost
              INTO v_rows
              FROM (SELECT j.tenant_no, j.id, j.topic_no, j.state, j.flags, j.epoch,
                           coalesce(j.lease_ms = 0 /* ended by expire_lost_v1 */, false) AS lost FROM headgate.jobs j
                     WHERE j.ctid >= format('(%s,0)', v_block)::tid AND j.ctid < format('(%s,0)', v_block + 1)::tid
                       AND ((j.state + 0 IN (2, 3) /* scheduled, retrying */ AND j.run_at <= v_now)
                            OR (reap_ AND j.state + 0 = 1 /* running */ AND j.lease_until < v_now))
                       FOR UPDATE SKIP LOCKED) AS d;
            FOR v_one IN 1 .. coalesce(cardinality(v_rows.ids), 0) LOOP
                BEGIN
                    IF v_rows.states[v_one] = 1 /* running */ THEN
                        RETURN QUERY
                        SELECT 'reaped', v_rows.tenants[v_one], v_rows.topics[v_one], l.id, NULL::bigint, l.run_at, NULL::text
                          FROM headgate.expire_leases_v1(
                                   v_rows.tenants[v_one], v_rows.ids[v_one:v_one], v_rows.epochs[v_one:v_one],
                                   v_rows.lost[v_one:v_one]) AS l;
                    ELSE
                        RETURN QUERY
                        SELECT 'promoted', p.tenant_no, p.topic_no, p.id, NULL::bigint, p.run_at, NULL::text
                          FROM headgate.promote_rows_v1(
                                   v_now, v_rows.tenants[v_one:v_one], v_rows.ids[v_one:v_one], v_rows.topics[v_one:v_one],
                                   v_rows.states[v_one:v_one], v_rows.tos[v_one:v_one]) AS p;
                    END IF;
                EXCEPTION WHEN OTHERS THEN
                    RETURN QUERY SELECT 'problem', v_rows.tenants[v_one], v_rows.topics[v_one], v_rows.ids[v_one], NULL::bigint,
                                        NULL::timestamptz, SQLSTATE || ' ' || SQLERRM;
                END;
            END LOOP;
        EXCEPTION WHEN OTHERS THEN
            RETURN QUERY SELECT 'unreadable', NULL::int, NULL::int, NULL::uuid, v_block::bigint, NULL::timestamptz,
                                SQLSTATE || ' ' || SQLERRM;
        END;
    END LOOP;
    IF from_ + n_ < v_blocks THEN
        RETURN QUERY SELECT 'more', NULL::int, NULL::int, NULL::uuid, NULL::bigint, NULL::timestamptz, NULL::text;
    END IF;
END $$;
