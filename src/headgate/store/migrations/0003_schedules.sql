-- Schedules and what they made.
-- compatible with: 1

CREATE TABLE headgate.schedules (
    schedule_no     int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_no       int NOT NULL REFERENCES headgate.tenants,
    name            text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    -- What the ids of its jobs are made from. It is not known outside: a job submitted under the id of a coming occurrence
    -- would take that one's place.
    seed            uuid NOT NULL DEFAULT gen_random_uuid(),
    version         int NOT NULL DEFAULT 1,              -- grows with every change by a person; firing is no change
    -- what it makes
    topic_no        int NOT NULL REFERENCES headgate.topics,
    priority        int,                                 -- NULL: its topic's, as the next two
    max_attempts    int CHECK (max_attempts BETWEEN 1 AND 10000),   -- NULL: the topic's
    policy_no       int REFERENCES headgate.retry_policies,         -- NULL: the topic's
    payload         bytea NOT NULL,
    headers         jsonb,
    tags            text[] NOT NULL DEFAULT '{}',
    -- when
    kind            smallint NOT NULL CHECK (kind BETWEEN 0 AND 3),  -- 0 at, 1 after, 2 every, 3 cron
    at              timestamptz,                         -- 0, 1: the moment; 2: the anchor of the grid
    span_ms         bigint CHECK (span_ms >= 0),         -- 1: the delay; 2: the interval
    expression      text,
    zone            text,
    overlap         smallint NOT NULL CHECK (overlap BETWEEN 0 AND 2),     -- 0 allow, 1 skip, 2 replace
    catch_up        smallint NOT NULL CHECK (catch_up BETWEEN 0 AND 2),    -- 0 one, 1 all, 2 none
    catch_up_most   int NOT NULL CHECK (catch_up_most BETWEEN 1 AND 100),
    when_full       smallint NOT NULL DEFAULT 0 CHECK (when_full BETWEEN 0 AND 1),   -- 0 wait, 1 skip
    ends_at         timestamptz,
    -- how it stands
    next_at         timestamptz,                         -- the next occurrence; NULL: it has ended
    look_at         timestamptz,                         -- when instances look at it: then, or later after an error;
                                                         -- NULL while it is paused and when it has ended
    last_at         timestamptz,                         -- the newest occurrence that was dealt with
    full_since      timestamptz,                         -- next_at has come, and its topic has no capacity for the job
    last_job_id     uuid,
    fired           bigint NOT NULL DEFAULT 0,
    skipped         bigint NOT NULL DEFAULT 0,
    last_skip       text,                                -- why the last one was skipped: overlap, late, refused
    last_skip_at    timestamptz,
    skips_at        timestamptz[] NOT NULL DEFAULT '{}', -- the newest 20 that were skipped, newest first
    skips_why       text[] NOT NULL DEFAULT '{}',        -- and why
    last_error      text,
    paused          boolean NOT NULL DEFAULT false,
    paused_by       text NOT NULL DEFAULT '',
    paused_at       timestamptz,
    reason          text NOT NULL DEFAULT '',
    source          text NOT NULL DEFAULT '',            -- the program that declares it; '': a person
    created_at      timestamptz NOT NULL,
    changed_at      timestamptz NOT NULL,
    changed_by      text NOT NULL DEFAULT '',
    UNIQUE (tenant_no, name),
    CHECK (CASE kind WHEN 0 THEN at IS NOT NULL WHEN 1 THEN at IS NOT NULL AND span_ms IS NOT NULL
                     WHEN 2 THEN at IS NOT NULL AND span_ms >= 1000
                     ELSE expression IS NOT NULL AND zone IS NOT NULL END),
    CHECK (look_at IS NULL OR (next_at IS NOT NULL AND NOT paused))
) WITH (fillfactor = 70);                                -- space for the update of every firing
CREATE INDEX schedules_due ON headgate.schedules (look_at) WHERE look_at IS NOT NULL;

ALTER TABLE headgate.schedule_jobs
    ADD COLUMN covers_from timestamptz,                  -- the job stands for all occurrences from here to its own
    ADD COLUMN triggered   boolean NOT NULL DEFAULT false,
    ADD COLUMN open_at     timestamptz;                  -- the occurrence again, until the job is known to have finished
-- What overlap policies have to look at: jobs of a schedule that may still be alive.
CREATE INDEX schedule_jobs_open ON headgate.schedule_jobs (tenant_no, schedule_no, open_at) WHERE open_at IS NOT NULL;

-- include: functions/open_runs_v1.sql
-- include: functions/made_by_v1.sql
-- include: functions/look_again_v1.sql
-- include: functions/fire_v1.sql
-- include: functions/trigger_v1.sql
