-- Retiring a day, after its partition was detached: from then on nobody can redrive its jobs, so what hangs on them may go.
-- Deletes that for up to n_ jobs after (tenant_, id_) in key order; returns the last job looked at, none when done.
CREATE FUNCTION headgate.retire_chunk_v1(table_ text, tenant_ int, id_ uuid, n_ int)
RETURNS TABLE (tenant_no int, id uuid) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF table_ !~ '^archive_[0-9]{8}$' THEN RAISE EXCEPTION 'not a day of the archive: %', table_; END IF;
    RETURN QUERY EXECUTE format($sql$
        WITH chunk AS MATERIALIZED (
            SELECT a.tenant_no, a.id, a.flags FROM headgate.%I a
             WHERE a.flags & 3687 <> 0 AND (a.tenant_no, a.id) > ($1, $2)     -- 1 payload, 2 tags, 4 limit key,
             ORDER BY a.tenant_no, a.id LIMIT $3),                            -- 32 dependants, 64 schedule,
                                                                              -- 512 dependencies, 1024 batch, 2048 unique
        payloads AS (DELETE FROM headgate.payloads p USING chunk c
                      WHERE c.flags & 1 <> 0 AND p.tenant_no = c.tenant_no AND p.id = c.id),
        tags AS (DELETE FROM headgate.job_tags t USING chunk c
                  WHERE c.flags & 2 <> 0 AND t.tenant_no = c.tenant_no AND t.job_id = c.id),
        limit_keys AS (DELETE FROM headgate.job_limit_keys k USING chunk c
                        WHERE c.flags & 4 <> 0 AND k.tenant_no = c.tenant_no AND k.job_id = c.id),
        waits AS (DELETE FROM headgate.job_dependencies d USING chunk c
                   WHERE c.flags & 32 <> 0 AND d.tenant_no = c.tenant_no AND d.parent_id = c.id AND d.met = 1),
        -- Nobody can redrive this parent any more: who still waits for it will wait in vain.
        in_vain AS (UPDATE headgate.job_dependencies d SET met = 8 FROM chunk c
                     WHERE c.flags & 32 <> 0 AND d.tenant_no = c.tenant_no AND d.parent_id = c.id AND d.met = 0
                    RETURNING d.tenant_no, d.child_id),
        told AS (INSERT INTO headgate.dependency_checks (tenant_no, child_id)
                 SELECT DISTINCT v.tenant_no, v.child_id FROM in_vain v),
        waited AS (DELETE FROM headgate.job_dependencies d USING chunk c
                    WHERE c.flags & 512 <> 0 AND d.tenant_no = c.tenant_no AND d.child_id = c.id),
        uniques AS (DELETE FROM headgate.unique_jobs q USING chunk c
                     WHERE c.flags & 2048 <> 0 AND q.tenant_no = c.tenant_no AND q.job_id = c.id AND NOT q.live),
        members AS (DELETE FROM headgate.batch_jobs b USING chunk c
                     WHERE c.flags & 1024 <> 0 AND b.tenant_no = c.tenant_no AND b.job_id = c.id),
        lineage AS (DELETE FROM headgate.schedule_jobs s USING chunk c
                     WHERE c.flags & 64 <> 0 AND s.tenant_no = c.tenant_no AND s.job_id = c.id)
        SELECT c.tenant_no, c.id FROM chunk c ORDER BY 1 DESC, 2 DESC LIMIT 1 $sql$, table_) USING tenant_, id_, n_;
END $$;

-- Drops a detached day; the counts people read follow in the same transaction.
CREATE FUNCTION headgate.retire_day_v1(table_ text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF table_ !~ '^(archive|job_events)_[0-9]{8}$' THEN RAISE EXCEPTION 'not a day partition: %', table_; END IF;
    -- Locked before it is counted: two that had both counted would wait for each other with the drop.
    EXECUTE format('LOCK TABLE headgate.%I IN ACCESS EXCLUSIVE MODE', table_);
    IF table_ LIKE 'archive%' THEN
        EXECUTE format('INSERT INTO headgate.flow_deltas (tenant_no, topic_no, from_state, to_state, n, at) '
                       'SELECT tenant_no, topic_no, state, -1, count(*), headgate.clock_v1() FROM headgate.%I '
                       'GROUP BY 1, 2, 3', table_);
    END IF;
    EXECUTE format('DROP TABLE headgate.%I', table_);
END $$;
