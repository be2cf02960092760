-- The operator's verbs: moving jobs, quiet workers, what each instance has connected.

-- Workers that are to get no more jobs for now, wherever they connect. Few rows, read by every tick as one hash and only
-- when that changed as rows; each has an end, so that a forgotten one does not keep a name from work for ever.
CREATE TABLE headgate.quiet_names (
    tenant_no  int NOT NULL,
    worker     text NOT NULL CHECK (length(worker) BETWEEN 1 AND 200),
    reason     text NOT NULL DEFAULT '',
    quiet_by   text NOT NULL DEFAULT '',
    since      timestamptz NOT NULL,
    until      timestamptz NOT NULL CHECK (until > since),
    PRIMARY KEY (tenant_no, worker)
);
-- Who is connected to an instance: one bounded summary per instance, whatever the number of its workers.
ALTER TABLE headgate.instances ADD COLUMN summary jsonb, ADD COLUMN summary_at timestamptz;

-- include: functions/job_states_v1.sql
-- include: functions/move_v1.sql
-- include: functions/oldest_pending_v1.sql
-- include: functions/running_jobs_v1.sql
