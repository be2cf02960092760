-- Unique jobs, dependencies and batches.
-- compatible with: 1

-- At most one live job has a key within its topic. The row stays when the job ends, no longer live: a redrive takes the
-- key back with it. It is the job's row lock that guards it: what ends a job holds that before touching this one.
CREATE TABLE headgate.unique_jobs (
    tenant_no  int NOT NULL,
    job_id     uuid NOT NULL,
    topic_no   int NOT NULL,
    key        text NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    live       boolean NOT NULL,
    PRIMARY KEY (tenant_no, job_id)
);
-- A topic has one tenant. With the tenant in front, a search by key could use the primary key, and read all of its rows.
CREATE UNIQUE INDEX unique_jobs_live ON headgate.unique_jobs (topic_no, key) WHERE live;
-- Listing the jobs that have or had a key walks this in id order, newest first.
CREATE INDEX unique_jobs_listed ON headgate.unique_jobs (key, tenant_no, job_id);
-- Submits that made no job of their own but changed the live one with their unique key, for a day: sent again, also when
-- that one has ended, they are answered with its id once more.
CREATE TABLE headgate.unique_calls (
    tenant_no   int NOT NULL,
    id          uuid NOT NULL,                           -- what the submit's own job would have been
    job_id      uuid NOT NULL,
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant_no, id)
);
CREATE INDEX unique_calls_expiry ON headgate.unique_calls (expires_at);

COMMENT ON TABLE headgate.job_dependencies IS 'which job waits for which';

-- Children that may be free now. Only ever appended to by what ends a parent, so two that end the last two parents of a
-- child do not wait for each other; decided afterwards, with a newer snapshot, by unblock_ready_v1. A row with a parent says
-- that this one has ended with very many children, of whom those after an id are still to be noted.
CREATE TABLE headgate.dependency_checks (
    check_no   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_no  int NOT NULL,
    child_id   uuid,
    parent_id  uuid,
    state      smallint,
    after_id   uuid,
    CHECK ((child_id IS NULL) = (parent_id IS NOT NULL) AND (parent_id IS NULL) = (state IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = off);
CREATE INDEX dependency_checks_ends ON headgate.dependency_checks (check_no) WHERE parent_id IS NOT NULL;

-- A batch: jobs submitted together. Its callback waits for every member and for the batch itself, which stands in
-- job_dependencies as one more parent and is fulfilled by sealing: so nothing is announced before all were added.
CREATE TABLE headgate.batches (
    tenant_no    int NOT NULL,
    id           uuid NOT NULL,
    name         text NOT NULL CHECK (length(name) <= 200),
    needs        smallint NOT NULL CHECK (needs IN (0, 1)),
    on_failure   smallint NOT NULL CHECK (on_failure IN (0, 1, 2)),
    callback_id  uuid,
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL,                   -- closed then, if it was not sealed
    sealed_at    timestamptz,
    expired      boolean NOT NULL DEFAULT false,
    total        int,                                    -- how many members, once sealed
    topics       text[],                                 -- a token for some topics must permit all of these; NULL: to see
                                                         -- it, a token must permit all of the tenant's
    gone_completed int NOT NULL DEFAULT 0,               -- members that retention has removed, by how they ended
    gone_dead      int NOT NULL DEFAULT 0,
    gone_cancelled int NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_no, id),
    CHECK ((sealed_at IS NULL) = (total IS NULL))
);
CREATE INDEX batches_open ON headgate.batches (expires_at) WHERE sealed_at IS NULL;
CREATE INDEX batches_sealed ON headgate.batches (sealed_at, id) WHERE sealed_at IS NOT NULL;
CREATE TABLE headgate.batch_jobs (
    tenant_no  int NOT NULL,
    batch_id   uuid NOT NULL,
    job_id     uuid NOT NULL,
    PRIMARY KEY (tenant_no, batch_id, job_id)
);
-- Without the tenant: with stale statistics, a search by batch would read all members of the tenant's batches here.
CREATE INDEX batch_jobs_of_job ON headgate.batch_jobs (job_id);

-- include: functions/meet_v1.sql
-- include: functions/ended_v1.sql
-- include: functions/add_dependencies_v1.sql
-- include: functions/remove_dependencies_v1.sql
-- include: functions/push_unique_v1.sql
-- include: functions/retake_unique_v1.sql
-- include: functions/unblock_ready_v1.sql
-- include: functions/mend_waits_v1.sql
-- include: functions/seal_batch_v1.sql
-- include: functions/expire_batches_v1.sql
-- include: functions/forget_batches_v1.sql
