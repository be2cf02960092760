-- Stores log lines of attempts of one tenant: ids_, epochs_ and attempts_ name the attempts (0: not given), owners_ the index of the
-- attempt of each line. Lines of a job that does not exist, or of an epoch that was never given out, are left out. A line that
-- is stored already stays. Returns how many were stored.
--
-- Rows of headgate.jobs are not locked: outcomes of these very jobs are on their way, and must not meet a lock. A finished job
-- is, so that its lines are not stored while it is removed. A job that ends and is discarded by an operator within this
-- statement, after it was looked at, leaves its lines behind: upkeep removes them (forget_log_lines_v1).
CREATE FUNCTION headgate.add_log_lines_v1(
    tenant_ int, ids_ uuid[], epochs_ bigint[], attempts_ int[], owners_ int[], seqs_ int[], ats_us_ bigint[], levels_ smallint[],
    loggers_ text[], lines_ text[]) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    -- Later ones would outlive the job: forget_jobs_v1 removes what was stored within an hour. In a variable: what calls
    -- clock_v1() in the statement cannot choose days of the archive, and all of them would be read.
    v_since    timestamptz := headgate.clock_v1() - interval '50 minutes';
    v_owners   int[];
    v_attempts int[];
    v_epochs   bigint[];    -- the present ones of their jobs
    v_long     int[];       -- attempts that may have more than is kept
    v_stored   int;
BEGIN
    -- One look-up for each attempt (OFFSET 0, FOR KEY SHARE): else all jobs of the tenant may be read.
    -- Finished jobs are locked in id order, as discard_v1 and redrive_v1 lock them: else these would deadlock.
    WITH finished AS MATERIALIZED (
        SELECT u.n, u.attempt, u.epoch, a.epoch AS now_epoch, a.attempt AS now_attempt
          FROM (SELECT g.id, g.epoch, g.attempt, g.n
                  FROM unnest(ids_, epochs_, attempts_) WITH ORDINALITY AS g(id, epoch, attempt, n) ORDER BY g.id) AS u
         CROSS JOIN LATERAL (
               SELECT a.epoch, a.attempt FROM headgate.archive a
                WHERE a.tenant_no = tenant_ AND a.id = u.id AND a.epoch >= u.epoch
                  -- At most two days; those to come have no finished jobs.
                  AND a.finished_at > v_since AND a.finished_at < v_since + interval '2 hours'
                  FOR KEY SHARE) AS a),
    known AS (
        SELECT f.n, f.attempt, f.epoch, f.now_epoch, f.now_attempt FROM finished f
         UNION ALL
        SELECT u.n, u.attempt, u.epoch, j.epoch, j.attempt
          FROM unnest(ids_, epochs_, attempts_) WITH ORDINALITY AS u(id, epoch, attempt, n)
         CROSS JOIN LATERAL (SELECT j.epoch, j.attempt FROM headgate.jobs j
                              WHERE j.tenant_no = tenant_ AND j.id = u.id AND j.epoch >= u.epoch OFFSET 0) AS j)
    SELECT array_agg(k.n::int ORDER BY k.n),
           array_agg(CASE WHEN k.attempt > 0 THEN k.attempt WHEN k.epoch = k.now_epoch THEN k.now_attempt ELSE 0 END ORDER BY k.n),
           array_agg(k.now_epoch ORDER BY k.n)
      INTO v_owners, v_attempts, v_epochs FROM known k;
    IF v_owners IS NULL THEN RETURN 0; END IF;
    WITH stored AS (
        INSERT INTO headgate.job_logs (tenant_no, job_id, epoch, seq, attempt, at, stored_at, level, logger, line)
        SELECT tenant_, ids_[l.owner], epochs_[l.owner], l.seq, v_attempts[array_position(v_owners, l.owner)],
               timestamptz 'epoch' + l.at_us * interval '1 microsecond', headgate.clock_v1(), l.level, l.logger, l.line
          FROM unnest(owners_, seqs_, ats_us_, levels_, loggers_, lines_) AS l(owner, seq, at_us, level, logger, line)
         WHERE l.owner = ANY (v_owners)
            ON CONFLICT DO NOTHING
        RETURNING 1)
    SELECT count(*) INTO v_stored FROM stored;
    -- Of the newest 100 epochs of a job: it can be snoozed or given back without end. Epochs count up by one within a range
    -- of 1,024 (ADR 19), so there are 100 as soon as the number within the range is that high, and older ranges are older.
    IF EXISTS (SELECT FROM unnest(v_epochs) AS e WHERE e & 1023 > 100) THEN
        DELETE FROM headgate.job_logs d
         USING (SELECT g.ctid FROM unnest(v_owners, v_epochs) AS o(n, epoch)
                 CROSS JOIN LATERAL (SELECT l.ctid FROM headgate.job_logs l
                                      WHERE l.tenant_no = tenant_ AND l.job_id = ids_[o.n] AND l.epoch <= o.epoch - 100
                                     OFFSET 0) AS g
                 WHERE o.epoch & 1023 > 100) AS x
         WHERE d.ctid = x.ctid;
    END IF;
    -- Sixteen lines of 4 KiB are within the bound of bytes: short logs are not read again.
    SELECT array_agg(DISTINCT l.owner) INTO v_long FROM unnest(owners_, seqs_) AS l(owner, seq)
     WHERE l.seq > 16 AND l.owner = ANY (v_owners);
    IF v_long IS NULL THEN RETURN v_stored; END IF;
    -- The first 50 lines up to 16 KiB stay, and the newest 150 up to 48 KiB: domain/job_logs.py.
    DELETE FROM headgate.job_logs d
     USING (SELECT w.ctid
              FROM (SELECT g.ctid, g.seq,
                           row_number() OVER (PARTITION BY g.job_id, g.epoch ORDER BY g.seq DESC) AS newest,
                           sum(octet_length(g.line)) OVER (PARTITION BY g.job_id, g.epoch ORDER BY g.seq DESC) AS newest_bytes,
                           sum(octet_length(g.line)) OVER (PARTITION BY g.job_id, g.epoch ORDER BY g.seq) AS first_bytes
                      FROM unnest(v_long) AS o(n)
                     CROSS JOIN LATERAL (SELECT l.ctid, l.job_id, l.epoch, l.seq, l.line FROM headgate.job_logs l
                                          WHERE l.tenant_no = tenant_ AND l.job_id = ids_[o.n] AND l.epoch = epochs_[o.n]
                                         OFFSET 0) AS g) AS w
             WHERE (w.newest > 150 OR w.newest_bytes > 49152) AND NOT (w.seq <= 50 AND w.first_bytes <= 16384)) AS x
     WHERE d.ctid = x.ctid;      -- lines are never changed: it is where it was, or gone
    RETURN v_stored;
END $$;
