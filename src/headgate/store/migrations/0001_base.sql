-- The base: names, live jobs, archive, events, flows, control, and the side tables later features lean on.
-- States: 0 pending, 1 running, 2 scheduled, 3 retrying, 4 blocked (live) · 5 completed, 6 dead, 7 cancelled (final).
-- Outcome kinds: 0 completed, 1 failed, 2 nack, 3 abandon, 4 snooze, 5 lease_expired. domain/states.py holds the same numbers.
-- No foreign keys on hot tables: a share lock on a parent row per job is a multixact per job.

-- ---------------------------------------------------------------- names (small, read through caches)

CREATE TABLE headgate.tenants (
    tenant_no   int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text NOT NULL UNIQUE CHECK (name ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    -- How many names it may have, checked by intern_topics_v1 and intern_policies_v1 when one is made: names are never removed, and every instance
    -- keeps all of them in memory (ADR 28). domain/limits.py has the same defaults.
    max_topics    int NOT NULL DEFAULT 10000 CHECK (max_topics >= 0),
    max_policies  int NOT NULL DEFAULT 1000 CHECK (max_policies >= 0),
    -- Further quotas (ADR 47); NULL: no limit. Those in `own` were set for this tenant, the others are as tenant_defaults says.
    submit_rate       text,                              -- 100/1s:20; kept by each instance in memory
    max_backlog       bigint CHECK (max_backlog >= 0),
    max_stored_bytes  bigint CHECK (max_stored_bytes >= 0),
    max_payload_bytes int CHECK (max_payload_bytes >= 0),
    max_sessions      int CHECK (max_sessions >= 0),
    max_schedules     int CHECK (max_schedules >= 0),
    max_webhooks      int DEFAULT 100 CHECK (max_webhooks >= 0),
    own           text[] NOT NULL DEFAULT '{}',
    stored_bytes  bigint NOT NULL DEFAULT 0,             -- measured by measure_stored_v1
    stored_at     timestamptz,
    bounded       boolean GENERATED ALWAYS AS (
                      max_backlog IS NOT NULL OR max_stored_bytes IS NOT NULL OR max_payload_bytes IS NOT NULL) STORED,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70);
-- Nearly always empty: that is how a submit sees that no tenant has a quota that it must look at.
CREATE INDEX tenants_bounded ON headgate.tenants (tenant_no) WHERE bounded;
-- Quotas of tenants without their own. One row, the same for all instances and for submits by SQL.
CREATE TABLE headgate.tenant_defaults (
    one               boolean PRIMARY KEY DEFAULT true CHECK (one),
    max_topics        int NOT NULL DEFAULT 10000,
    max_policies      int NOT NULL DEFAULT 1000,
    submit_rate       text,
    max_backlog       bigint,
    max_stored_bytes  bigint,
    max_payload_bytes int,
    max_sessions      int,
    max_schedules     int,
    max_webhooks      int DEFAULT 100
);
INSERT INTO headgate.tenant_defaults DEFAULT VALUES;
-- Bytes of payloads and results by table: jobs, payloads, and the days of the archive.
CREATE TABLE headgate.stored_parts (
    part       text NOT NULL,
    tenant_no  int NOT NULL,                             -- 0: the table was measured
    bytes      bigint NOT NULL,
    at         timestamptz NOT NULL,
    PRIMARY KEY (part, tenant_no)
);

-- Retry policies are rows, so that any instance (and the watchdog) can apply them without knowing who submitted the job.
CREATE TABLE headgate.retry_policies (
    policy_no   int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_no   int NOT NULL DEFAULT 0,                  -- who uses it, and has it counted; 0: all tenants
    kind        smallint NOT NULL CHECK (kind BETWEEN 0 AND 6),
    base_ms     bigint NOT NULL CHECK (base_ms >= 1),
    cap_ms      bigint NOT NULL CHECK (cap_ms BETWEEN base_ms AND 2592000000),
    delays_ms   bigint[] NOT NULL DEFAULT '{}' CHECK ((kind = 6) = (cardinality(delays_ms) BETWEEN 1 AND 100)),
    UNIQUE (tenant_no, kind, base_ms, cap_ms, delays_ms)
);
INSERT INTO headgate.retry_policies (kind, base_ms, cap_ms) VALUES (0, 1000, 86400000);   -- 1: attempt² seconds

CREATE TABLE headgate.topics (
    topic_no        int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_no       int NOT NULL REFERENCES headgate.tenants,
    name            text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    -- NULL: strict priority. Else each unit of priority is worth this much waiting; the cap keeps int32 × step in int64.
    ageing_step_us  bigint CHECK (ageing_step_us BETWEEN 1000 AND 3600000000),
    -- Of jobs submitted without one. NULL: neither declared by a handler nor set by an operator (headgate.topic_rules).
    max_attempts    int CHECK (max_attempts BETWEEN 1 AND 10000),
    policy_no       int REFERENCES headgate.retry_policies,
    priority        int,
    -- Of one attempt, sent to workers. NULL: as for the others; 0: no limit.
    time_limit_ms   bigint CHECK (time_limit_ms BETWEEN 0 AND 157680000000),
    -- How long finished jobs are kept; NULL: as headgate.retention says.
    keep_completed_ms  bigint CHECK (keep_completed_ms BETWEEN 86400000 AND 315360000000),
    keep_dead_ms       bigint CHECK (keep_dead_ms BETWEEN 86400000 AND 315360000000),
    keep_cancelled_ms  bigint CHECK (keep_cancelled_ms BETWEEN 86400000 AND 315360000000),
    lease_ms        bigint CHECK (lease_ms BETWEEN 1000 AND 86400000),    -- of claims that ask for none; NULL: the server's
    payload_schema  text,                                -- JSON Schema, checked by servers at submit; NULL: none
    dead_letter_no  int REFERENCES headgate.topics CHECK (dead_letter_no <> topic_no),   -- what dies is also submitted there
    max_consumers   int CHECK (max_consumers >= 1),      -- worker sessions that receive its jobs at once; NULL: any number
    max_payload_bytes int CHECK (max_payload_bytes >= 0),   -- of a job, checked at submit; NULL: the limit of the server
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by      xid8 NOT NULL DEFAULT pg_current_xact_id(),   -- the transaction that made or changed it last
    UNIQUE (tenant_no, name)
);
-- Instances keep all topics in memory, and read again what transactions have changed that their last look did not see.
CREATE INDEX topics_changed ON headgate.topics (changed_by);
-- Nearly always empty: that is how the end of a job sees that no topic has a dead-letter topic.
CREATE INDEX topics_dead_letter ON headgate.topics (topic_no) WHERE dead_letter_no IS NOT NULL;

-- How long things are kept where a topic has no rule of its own. One row, the same for all instances: with settings of
-- their own, two of them would undo each other's walks, and the shorter rule would win without being chosen.
CREATE TABLE headgate.retention (
    one           boolean PRIMARY KEY DEFAULT true CHECK (one),
    completed_ms  bigint NOT NULL DEFAULT 604800000 CHECK (completed_ms BETWEEN 86400000 AND 315360000000),
    dead_ms       bigint NOT NULL DEFAULT 2592000000 CHECK (dead_ms BETWEEN 86400000 AND 315360000000),
    cancelled_ms  bigint NOT NULL DEFAULT 604800000 CHECK (cancelled_ms BETWEEN 86400000 AND 315360000000),
    audit_ms      bigint NOT NULL DEFAULT 31536000000 CHECK (audit_ms BETWEEN 86400000 AND 315360000000)
);
INSERT INTO headgate.retention DEFAULT VALUES;
-- How far each day of the archive is cleared. The row's lock is the right to work on the day.
CREATE TABLE headgate.retention_days (
    day         date PRIMARY KEY,
    rules       text,                                    -- those the walk removes by: see rules_due_v1
    tenant_no   int NOT NULL DEFAULT 0,                  -- the last job looked at
    id          uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    missed      boolean NOT NULL DEFAULT false,          -- some were locked by others
    rest_until  timestamptz,
    done        boolean NOT NULL DEFAULT false,
    empty       boolean NOT NULL DEFAULT false,
    leaving     boolean NOT NULL DEFAULT false           -- it is detached to be dropped, or about to be
);
CREATE INDEX retention_days_leaving ON headgate.retention_days (day) WHERE leaving;

-- Limits a topic may carry; no row means no limit, and no cost.
CREATE TABLE headgate.topic_limits (
    topic_no             int PRIMARY KEY REFERENCES headgate.topics,
    tenant_no            int NOT NULL,
    max_running          int CHECK (max_running >= 0),
    rate_count           int CHECK (rate_count >= 1),                     -- starts per period, over all keys
    rate_period_ms       bigint CHECK (rate_period_ms >= 1),
    rate_burst           int CHECK (rate_burst >= 1),                     -- NULL: as many as rate_count
    max_running_per_key  int CHECK (max_running_per_key >= 1),
    key_rate_count       int CHECK (key_rate_count >= 1),
    key_rate_period_ms   bigint CHECK (key_rate_period_ms >= 1),
    key_rate_burst       int CHECK (key_rate_burst >= 1),
    ordered_by_key       boolean NOT NULL DEFAULT false,
    fair_by_key          boolean NOT NULL DEFAULT false,
    max_backlog          bigint CHECK (max_backlog >= 0),
    -- What a claim must count, and what only concerns jobs with a key.
    counted              boolean GENERATED ALWAYS AS (max_running IS NOT NULL OR rate_count IS NOT NULL) STORED,
    keyed                boolean GENERATED ALWAYS AS (max_running_per_key IS NOT NULL OR key_rate_count IS NOT NULL
                                                      OR ordered_by_key OR fair_by_key) STORED,
    -- After a change: keys up to here have been looked at again; NULL: all.
    swept_to             text COLLATE "C",
    changed_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((rate_count IS NULL) = (rate_period_ms IS NULL) AND (rate_count IS NOT NULL OR rate_burst IS NULL)),
    CHECK ((key_rate_count IS NULL) = (key_rate_period_ms IS NULL) AND (key_rate_count IS NOT NULL OR key_rate_burst IS NULL))
);
-- Nearly always empty: that is how a submit sees that no topic bounds its backlog.
CREATE INDEX topic_limits_backlog ON headgate.topic_limits (topic_no) WHERE max_backlog IS NOT NULL;

-- Where the rules and limits of a topic come from: what handlers declare and what operators have set, beside each other
-- (domain/topic_rules.py). Read by people only: the values that count are in the two tables above, which is where
-- submits and claims find them.
CREATE TABLE headgate.topic_rules (
    topic_no      int PRIMARY KEY REFERENCES headgate.topics,
    declarations  jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(declarations) = 'array'),   -- newest first; that one counts
    settings      jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(settings) = 'object'),      -- by name; they win
    reported      text NOT NULL DEFAULT '',              -- the last conflict of declarations that was logged
    changed_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    version       int NOT NULL DEFAULT 0                 -- one more with each change of declarations or settings
);
-- The newest versions of each topic (domain/topic_policy.py): who made them, and what they changed.
CREATE TABLE headgate.topic_versions (
    topic_no  int NOT NULL REFERENCES headgate.topics,
    version   int NOT NULL,
    at        timestamptz NOT NULL,
    actor     text NOT NULL,
    verb      text NOT NULL,
    reason    text NOT NULL DEFAULT '',
    settings  jsonb NOT NULL,                            -- what operators have set in this version, by name
    changes   jsonb NOT NULL,
    PRIMARY KEY (topic_no, version)
);
-- The consumers that want jobs of a topic with a maximum of them: those that are active receive them, the others wait in the
-- order of `since`. An instance renews its rows; a row that is not renewed counts until `until`. `session` is a worker session of
-- one instance, or a pull worker, which may call several: it has a row of each, and counts once.
CREATE TABLE headgate.topic_consumers (
    topic_no     int NOT NULL,
    session      uuid NOT NULL,
    instance_no  int NOT NULL,
    worker       text NOT NULL,
    active       boolean NOT NULL,
    since        timestamptz NOT NULL,
    until        timestamptz NOT NULL,
    PRIMARY KEY (topic_no, session, instance_no)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- One row per server process that ever served: the owner number on a running job points here.
CREATE TABLE headgate.instances (
    instance_no  int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name         text NOT NULL,
    version      text NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    knows        int NOT NULL DEFAULT 0  -- the newest migration of its release: what demands more would break it
);

-- ---------------------------------------------------------------- live jobs (the hot table)

-- An epoch is never given out twice for one id, also when its job was discarded or forgotten and is submitted again (ADR
-- 19). So each flush of submits takes a range of 1,024 of its own, in which its jobs count their claims; who has used up
-- its range continues in a new one. No CACHE: ranges must grow in the order in which they are taken. Up to 2^53, which a
-- double holds; at the end of all ranges it fails rather than begins again.
CREATE SEQUENCE headgate.epoch_ranges MAXVALUE 8796093022207 NO CYCLE;
-- A row per restore of a backup: where epochs begin since then. What was archived before continues from here when redriven.
CREATE TABLE headgate.epoch_floors (
    epoch         bigint PRIMARY KEY,
    at            timestamptz NOT NULL
);

CREATE TABLE headgate.jobs (
    id            uuid NOT NULL,
    rank_at       bigint NOT NULL,                       -- µs of the database clock at submit, less the ageing bonus
    created_at    timestamptz NOT NULL,
    run_at        timestamptz NOT NULL,                  -- when it is, or was, due
    claimed_at    timestamptz,                           -- start of the newest attempt
    lease_until   timestamptz,                           -- never indexed: renewals stay HOT
    tenant_no     int NOT NULL,
    topic_no      int NOT NULL,
    rank_class    int NOT NULL,                          -- strict: −1 − priority, so that int32 maps onto int32
    priority      int NOT NULL,
    attempt       int NOT NULL DEFAULT 0,
    max_attempts  int NOT NULL,
    epoch         bigint NOT NULL DEFAULT nextval('headgate.epoch_ranges') << 10,   -- one more at each claim
    policy_no     int NOT NULL,
    owner         int,                                   -- the instance that claimed it, or that its worker has declared it to
    lease_ms      int,                                   -- how long the newest lease is: it ends no later than in that time; 0: see expire_lost_v1
    state         smallint NOT NULL,                     -- see domain/states.py
    flags         smallint NOT NULL DEFAULT 0,           -- see domain/flags.py
    last_outcome  smallint,                              -- of the epoch that was settled last
    worker        text,                                  -- its id; on a Work stream then chr(31) and its incarnation
    last_error    text,
    headers       jsonb,
    progress      jsonb,
    payload       bytea,                                 -- NULL with the flag payload_apart
    PRIMARY KEY (tenant_no, id),
    CONSTRAINT jobs_live CHECK (state BETWEEN 0 AND 4 /* pending to blocked */),
    CONSTRAINT jobs_lease CHECK ((state = 1 /* running */) = (lease_until IS NOT NULL)
       AND (state = 1 /* running */) = (owner IS NOT NULL)),
    CONSTRAINT jobs_attempts CHECK (attempt BETWEEN 0 AND max_attempts AND attempt <= epoch
                                    AND (state = 1 /* running */ OR attempt < max_attempts)),
    CONSTRAINT jobs_cancel CHECK (flags & 16 /* cancel_requested */ = 0 OR state = 1 /* running */),
    CONSTRAINT jobs_payload CHECK ((payload IS NULL) = (flags & 1 /* payload_apart */ <> 0))
) WITH (
    fillfactor = 90,                                     -- space for HOT renewals and progress
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000, vacuum_truncate = off
);
-- No statistics on the tenant: up to PostgreSQL 16 a tenant that is estimated small (it came after the last ANALYZE) makes
-- a look-up by (tenant_no, id) walk all of the tenant's rows, 16,000 pages instead of 1,500 for a claim of 100.
ALTER TABLE headgate.jobs ALTER COLUMN tenant_no SET STATISTICS 0;
-- Four indexes and no more: a claim is never HOT, so each one costs every job. A topic belongs to one tenant, so its
-- number alone leads the claim order.
CREATE INDEX jobs_claim_order ON headgate.jobs (topic_no, rank_class, rank_at) WHERE state = 0 /* pending */;
CREATE INDEX jobs_due ON headgate.jobs (run_at) WHERE state IN (2, 3) /* scheduled, retrying */;
CREATE INDEX jobs_running ON headgate.jobs (claimed_at) WHERE state = 1 /* running */;

-- Payloads over 1 KiB, written once: in the job row they would be rewritten by every claim and settle.
CREATE TABLE headgate.payloads (
    tenant_no  int NOT NULL,
    id         uuid NOT NULL,
    payload    bytea NOT NULL,
    PRIMARY KEY (tenant_no, id)
);
ALTER TABLE headgate.payloads ALTER COLUMN payload SET STORAGE EXTERNAL;   -- compressing costs more than it saves here

-- Where jobs have become claimable lately (functions/arrived_v1.sql), by the transaction that made them so.
CREATE TABLE headgate.arrivals (
    xid         xid8 NOT NULL DEFAULT pg_current_xact_id(),
    topic_no    int NOT NULL,
    rank_class  int NOT NULL,
    rank_from   bigint NOT NULL,
    rank_to     bigint NOT NULL                          -- included
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = off);
CREATE INDEX arrivals_xid ON headgate.arrivals (xid);
CREATE TABLE headgate.arrivals_floor (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    generation  bigint NOT NULL,
    snapshot    pg_snapshot NOT NULL,                    -- what it shows goes next
    gone_to     xid8 NOT NULL,                           -- all that was older has gone
    taken_at    timestamptz NOT NULL
) WITH (fillfactor = 50);
INSERT INTO headgate.arrivals_floor (generation, snapshot, gone_to, taken_at)
VALUES (1, pg_current_snapshot(), '0', clock_timestamp());

-- ---------------------------------------------------------------- finished jobs and history (dropped by the day)

CREATE TABLE headgate.archive (
    id            uuid NOT NULL,
    created_at    timestamptz NOT NULL,
    run_at        timestamptz NOT NULL,
    claimed_at    timestamptz,
    finished_at   timestamptz NOT NULL,
    tenant_no     int NOT NULL,
    topic_no      int NOT NULL,
    priority      int NOT NULL,
    attempt       int NOT NULL,
    max_attempts  int NOT NULL,
    epoch         bigint NOT NULL,
    policy_no     int NOT NULL,
    owner         int,
    state         smallint NOT NULL,                     -- see domain/states.py
    flags         smallint NOT NULL,
    last_outcome  smallint,
    worker        text,                                  -- its id; on a Work stream then chr(31) and its incarnation
    last_error    text,
    headers       jsonb,
    progress      jsonb,
    payload       bytea,
    result        bytea,
    PRIMARY KEY (tenant_no, id, finished_at),
    CONSTRAINT archive_final CHECK (state BETWEEN 5 AND 7 /* completed to cancelled */)
) PARTITION BY RANGE (finished_at);
ALTER TABLE headgate.archive ALTER COLUMN result SET STORAGE EXTERNAL;
-- Dead letters and cancellations are few; completed jobs, the hot path, never touch this index.
CREATE INDEX archive_unhappy ON headgate.archive (tenant_no, id) WHERE state IN (6, 7) /* dead, cancelled */;

CREATE SEQUENCE headgate.event_no CACHE 32;
CREATE TABLE headgate.job_events (
    tenant_no      int NOT NULL,
    job_id         uuid NOT NULL,
    at             timestamptz NOT NULL,
    event_no       bigint NOT NULL DEFAULT nextval('headgate.event_no'),
    kind           smallint NOT NULL,
    epoch          bigint NOT NULL,
    attempt        int NOT NULL,
    state          smallint NOT NULL,                    -- the state the job went to
    run_at         timestamptz,                          -- when it is due again, if it is
    claimed_at     timestamptz,                          -- when the attempt this is about began
    worker         text,
    actor          text,                                 -- who asked, for an operator's verb
    reason         text,
    error_type     text,
    error_message  text,
    error_trace    text,
    detail         jsonb,
    xid            xid8 NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (tenant_no, job_id, at, event_no)
) PARTITION BY RANGE (at);
-- By the transaction that wrote them, for the stream of events (store/events.py).
CREATE INDEX job_events_followed ON headgate.job_events (tenant_no, xid);

-- A completion is no row of job_events. While a stream of events wants them, each flush notes its own here
-- (functions/settle_recorded_v1.sql); they are kept for ten minutes.
CREATE TABLE headgate.completions (
    tenant_no  int NOT NULL,
    xid        xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at         timestamptz NOT NULL,
    ids        uuid[] NOT NULL,
    topic_nos  int[] NOT NULL,                           -- these three beside ids
    epochs     bigint[] NOT NULL,
    attempts   int[] NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = off);
CREATE INDEX completions_followed ON headgate.completions (tenant_no, xid);
CREATE TABLE headgate.event_recording (
    one    boolean PRIMARY KEY DEFAULT true CHECK (one),
    since  timestamptz NOT NULL,                         -- completions are noted since then, without a break,
    until  timestamptz NOT NULL                          -- and until then; every tick looks at it
) WITH (fillfactor = 50);
INSERT INTO headgate.event_recording (since, until) VALUES (timestamptz 'epoch', timestamptz 'epoch');

-- ---------------------------------------------------------------- counts for people

-- Each flush appends one row per (topic, from, to); nothing is ever updated, so no flush waits for another.
CREATE TABLE headgate.flow_deltas (
    tenant_no   int NOT NULL,
    topic_no    int NOT NULL,
    from_state  smallint NOT NULL,                       -- −1: it did not exist
    to_state    smallint NOT NULL,                       -- −1: it was removed
    n           bigint NOT NULL,
    at          timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = off);
CREATE TABLE headgate.state_counts (
    tenant_no  int NOT NULL,
    topic_no   int NOT NULL,
    state      smallint NOT NULL,
    n          bigint NOT NULL,
    PRIMARY KEY (tenant_no, topic_no, state)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
-- For record_ages_v1. Without n: updates of it stay HOT.
CREATE INDEX state_counts_pending ON headgate.state_counts (topic_no) WHERE state = 0 /* pending */;
-- What changed in 60, 300 and 3,600 seconds: charts read one row for each point. Topic 0 is all topics of a tenant; tenant 0
-- says that a server was running, so that charts can tell silence from an outage (store/series.py).
CREATE TABLE headgate.flow_buckets (
    tenant_no       int NOT NULL,
    topic_no        int NOT NULL,
    seconds         int NOT NULL CHECK (seconds IN (60, 300, 3600)),
    at              timestamptz NOT NULL,                -- its beginning
    submitted       bigint NOT NULL DEFAULT 0,
    started         bigint NOT NULL DEFAULT 0,
    completed       bigint NOT NULL DEFAULT 0,
    retried         bigint NOT NULL DEFAULT 0,           -- attempts that ended with a later retry
    failed          bigint NOT NULL DEFAULT 0,           -- attempts that ended with a retry, or made the job dead
    dead            bigint NOT NULL DEFAULT 0,
    cancelled       bigint NOT NULL DEFAULT 0,
    pending_change  bigint NOT NULL DEFAULT 0,           -- jobs that became pending, less those that left it
    changes         bigint NOT NULL DEFAULT 0,           -- all changes of state: the version that live pages compare
    oldest_ms       bigint,                              -- the longest that a due job had waited; NULL: none waited
    oldest_paused_ms bigint,                             -- the same, while its topic was paused
    PRIMARY KEY (tenant_no, topic_no, seconds, at)
) WITH (fillfactor = 70);
CREATE INDEX flow_buckets_at ON headgate.flow_buckets (seconds, at);
-- How long jobs waited and ran, as histograms by the bounds of domain/histogram.py (WAITS_US); written by each instance every
-- ten seconds (store/latencies.py). Topic 0 is all topics of a tenant.
CREATE TABLE headgate.latency_buckets (
    tenant_no  int NOT NULL,
    topic_no   int NOT NULL,
    seconds    int NOT NULL CHECK (seconds IN (60, 300, 3600)),
    at         timestamptz NOT NULL,
    pickup     bigint[] NOT NULL,
    run        bigint[] NOT NULL,
    PRIMARY KEY (tenant_no, topic_no, seconds, at)
) WITH (fillfactor = 70);
CREATE INDEX latency_buckets_at ON headgate.latency_buckets (seconds, at);

-- ---------------------------------------------------------------- dispatch control

-- (0, 0) everything · (tenant, 0) a tenant · (tenant, topic) a topic. The key makes a second global row impossible.
CREATE TABLE headgate.dispatch_control (
    tenant_no    int NOT NULL DEFAULT 0,
    topic_no     int NOT NULL DEFAULT 0,
    paused       boolean NOT NULL,
    reason       text NOT NULL DEFAULT '',
    paused_by    text NOT NULL DEFAULT '',
    paused_at    timestamptz,                            -- when last paused; kept by a resume
    paused_until timestamptz,
    PRIMARY KEY (tenant_no, topic_no),
    CHECK (topic_no = 0 OR tenant_no > 0),
    CHECK (paused OR (reason = '' AND paused_until IS NULL)),
    CHECK (NOT paused OR paused_at IS NOT NULL)
);
INSERT INTO headgate.dispatch_control (paused) VALUES (false);

-- ---------------------------------------------------------------- side tables

-- Same topic and key, same job, until the window ends; the hash tells "again" from "another body under the same key". Per
-- topic: who may not submit to a topic can neither take its keys nor learn the job behind one (ADR 28).
CREATE TABLE headgate.idempotency_keys (
    tenant_no   int NOT NULL,
    topic_no    int NOT NULL,                            -- as submitted: a job that is moved leaves its key behind
    key         text NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    job_id      uuid NOT NULL,
    body_hash   bytea NOT NULL,
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant_no, key, topic_no)               -- in this order: lists are filtered by the key alone
);
CREATE INDEX idempotency_keys_expiry ON headgate.idempotency_keys (expires_at);
CREATE INDEX idempotency_keys_of_job ON headgate.idempotency_keys (job_id);

-- Ids that were sent again: a delayed first copy may still be on its way, and must not make a second job of one that
-- has meanwhile finished.
CREATE TABLE headgate.resent_ids (
    tenant_no   int NOT NULL,
    id          uuid NOT NULL,
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant_no, id)
);
CREATE INDEX resent_ids_expiry ON headgate.resent_ids (expires_at);

CREATE TABLE headgate.job_tags (
    tenant_no  int NOT NULL,
    tag        text NOT NULL CHECK (length(tag) BETWEEN 1 AND 100),
    job_id     uuid NOT NULL,
    PRIMARY KEY (tenant_no, tag, job_id)                 -- listing by tag walks this in id order, newest first
);
CREATE INDEX job_tags_of_job ON headgate.job_tags (job_id);

-- What handlers logged while they ran (ADR 51). Numbers of lines are the worker's: they order the lines of an attempt, and a gap
-- says how many were left out. at is by the worker's clock, for people; stored_at by that of the database.
CREATE TABLE headgate.job_logs (
    epoch      bigint NOT NULL CHECK (epoch >= 0),
    at         timestamptz NOT NULL,
    stored_at  timestamptz NOT NULL,
    job_id     uuid NOT NULL,
    tenant_no  int NOT NULL,
    seq        int NOT NULL CHECK (seq >= 1),
    attempt    int NOT NULL CHECK (attempt >= 0),        -- 0: not known
    level      smallint NOT NULL CHECK (level BETWEEN 1 AND 5),   -- debug, info, warning, error, critical
    logger     text NOT NULL CHECK (length(logger) <= 200),
    line       text NOT NULL CHECK (octet_length(line) <= 4096),
    PRIMARY KEY (tenant_no, job_id, epoch, seq)
);

-- child waits for parent; no counter row, so ten thousand parents can end at once without meeting on one row.
CREATE TABLE headgate.job_dependencies (
    tenant_no   int NOT NULL,
    parent_id   uuid NOT NULL,
    child_id    uuid NOT NULL,
    needs       smallint NOT NULL CHECK (needs IN (0, 1)),         -- 0 the parent succeeded, 1 the parent ended
    on_failure  smallint NOT NULL CHECK (on_failure IN (0, 1, 2)), -- 0 cancel the child, 1 ignore, 2 wait on
    met         smallint NOT NULL CHECK (met IN (0, 1, 6, 7, 8)),  -- 0 not yet, 1 yes; never, since the parent is: 6 dead,
    PRIMARY KEY (tenant_no, parent_id, child_id)                   -- 7 cancelled, 8 gone
);
-- Without the tenant: with stale statistics, a search by parent would read all dependencies of the tenant here.
CREATE INDEX job_dependencies_of_child ON headgate.job_dependencies (child_id);
-- What still keeps a child from running: one probe, however many parents it had.
CREATE INDEX job_dependencies_unmet ON headgate.job_dependencies (tenant_no, child_id, met, parent_id) WHERE met <> 1;

-- The key of a job that has one, for as long as the job is known.
CREATE TABLE headgate.job_limit_keys (
    tenant_no   int NOT NULL,
    job_id      uuid NOT NULL,
    topic_no    int NOT NULL,
    limit_key   text COLLATE "C" NOT NULL CHECK (length(limit_key) BETWEEN 1 AND 255),
    PRIMARY KEY (tenant_no, job_id)
);
ALTER TABLE headgate.job_limit_keys ALTER COLUMN tenant_no SET STATISTICS 0;   -- as for headgate.jobs
-- Who waits for its key, in the order in which they will be let in. A row here is a blocked job that is due.
CREATE TABLE headgate.limit_line (
    tenant_no   int NOT NULL,
    job_id      uuid NOT NULL,
    topic_no    int NOT NULL,
    limit_key   text COLLATE "C" NOT NULL,
    rank_class  int NOT NULL,
    rank_at     bigint NOT NULL,
    PRIMARY KEY (tenant_no, job_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = off);
ALTER TABLE headgate.limit_line ALTER COLUMN tenant_no SET STATISTICS 0;       -- as for headgate.jobs
CREATE INDEX limit_line_order ON headgate.limit_line (topic_no, limit_key, rank_class, rank_at, job_id);
-- What a limited topic (key '') and each key of a topic uses now. The row's lock is where those meet who change it.
CREATE TABLE headgate.limit_usage (
    tenant_no    int NOT NULL,
    topic_no     int NOT NULL,
    limit_key    text COLLATE "C" NOT NULL DEFAULT '',
    running      int NOT NULL DEFAULT 0,                 -- running jobs counted here (a topic's: those with the flag counted)
    admitted     int NOT NULL DEFAULT 0,                 -- pending jobs of the key
    tokens       double precision,                       -- at refilled_at; NULL: a full bucket
    refilled_at  timestamptz,
    next_at      timestamptz,                            -- when the next in line may be let in
    holder       uuid,                                   -- strict order: the job that began and has not ended
    PRIMARY KEY (topic_no, limit_key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
CREATE INDEX limit_usage_next ON headgate.limit_usage (next_at) WHERE next_at IS NOT NULL;

-- Lineage both ways between a schedule and the jobs it made.
CREATE TABLE headgate.schedule_jobs (
    tenant_no     int NOT NULL,
    schedule_no   int NOT NULL,
    occurrence    timestamptz NOT NULL,
    job_id        uuid NOT NULL,
    PRIMARY KEY (tenant_no, schedule_no, occurrence)
);
CREATE INDEX schedule_jobs_of_job ON headgate.schedule_jobs (tenant_no, job_id);
CREATE INDEX schedule_jobs_listed ON headgate.schedule_jobs (tenant_no, schedule_no, job_id);

-- ---------------------------------------------------------------- the functions the server calls

-- include: functions/clock_v1.sql
-- include: functions/ensure_partitions_v1.sql

-- Retention: which finished jobs are old enough to be removed, and their removal in bounded chunks.
--
-- Ages are counted by whole UTC days: a job is old when its day ended longer ago than its rule says. So each day is walked
-- once per rule that falls due, not once per tick. A day in which every rule is due is detached and dropped whole; in any
-- other, rows are deleted by key. headgate.retention_days remembers how far a walk is: its row is locked by the instance that works
-- on the day, so that two instances never walk the same day, and a walk that was cut off continues where it stopped.
-- include: functions/rules_due_v1.sql
-- include: functions/keep_bounds_v1.sql
-- include: functions/days_due_v1.sql
-- include: functions/empty_days_v1.sql
-- include: functions/forget_jobs_v1.sql
-- include: functions/forget_first_lives_v1.sql
-- include: functions/retire_chunk_v1.sql
-- include: functions/detach_day_v1.sql
-- include: functions/retire_day_v1.sql

-- include: functions/retry_delay_ms_v1.sql
-- include: functions/receipts_v1.sql

-- Numbers for tenants, topics and retry policies, made on first use. Read first: names are almost always known, and
-- an INSERT … ON CONFLICT burns an identity value even when it inserts nothing.
--
-- A tenant has a quota of topics and of policies. It is checked here, and only for names that are new: so all instances and
-- SQL submits agree, and a known name costs nothing. If the new names of a call do not all fit, none of them is made: they have
-- no row in the answer, and one row tells the quota. Nothing is locked for it: transactions that make names at
-- the same moment do not see each other's, and may pass the quota by as many.
-- include: functions/intern_tenant_v1.sql
-- include: functions/intern_topics_v1.sql
-- include: functions/intern_policies_v1.sql
-- include: functions/intern_retry_v1.sql
-- include: functions/topic_changed_v1.sql

-- Arrivals: where jobs have become claimable, so that no claim anywhere passes them by (ADR 0021).
--
-- A claim leaves out the dead entries below its watermark. A job may become claimable there: a retry and an abandoned job keep
-- their rank, a transaction commits long after its jobs were ranked. So all code that makes jobs claimable writes the key
-- ranges of their ranks here, in the same transaction: they are seen from its commit on, like the jobs. A claim reads what
-- was committed since the claim before it (the snapshot of that one says what it has seen), and looks there as well.
-- include: functions/key_ranges_v1.sql
-- include: functions/arrived_v1.sql
-- include: functions/with_arrivals_v1.sql
-- include: functions/forget_arrivals_v1.sql

-- include: functions/deadline_v1.sql
-- include: functions/submit_v1.sql

-- Who may do what in the database (ADR 26). The owner of the schema migrates; servers log in as members of headgate_runtime,
-- people who look as members of headgate_reader, applications as roles of their own that may call headgate.submit only.
-- include: functions/row_security_v1.sql
-- include: functions/grant_roles_v1.sql

-- Which roles may submit for which tenants by headgate.submit. A role's members may, too.
CREATE TABLE headgate.role_tenants (
    role    name NOT NULL,
    tenant  text NOT NULL CHECK (tenant ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    PRIMARY KEY (role, tenant)
);

-- include: functions/allow_submit.sql
-- include: functions/disallow_submit.sql
-- include: functions/may_submit_v1.sql

-- Jobs of applications wake the servers at the commit. Servers tell each other after theirs, so the condition is false for
-- them; it is looked at once a flush, and then nothing is queued.
-- include: functions/wake_tick_v1.sql
-- include: functions/wake_arrivals_v1.sql
CREATE CONSTRAINT TRIGGER wake AFTER INSERT ON headgate.arrivals DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (pg_catalog.current_setting('headgate.submits', true) = 'wake') EXECUTE FUNCTION headgate.wake_arrivals_v1();
-- include: functions/submit_returning.sql
-- include: functions/submit.sql
-- include: functions/hold_consumers_v1.sql
-- include: functions/claim_v1.sql
-- include: functions/submit_claim_v1.sql
-- include: functions/submit_running_v1.sql
-- include: functions/lock_jobs_v1.sql
-- include: functions/dead_letter_v1.sql
-- include: functions/settle_other_v1.sql
-- include: functions/settle_v1.sql
-- include: functions/settle_unlocked_v1.sql
-- include: functions/settle_recorded_v1.sql
-- include: functions/locked_ords_v1.sql
-- include: functions/renew_v1.sql
-- include: functions/expire_lost_v1.sql
-- include: functions/promote_v1.sql
-- include: functions/promote_rows_v1.sql
-- include: functions/reap_v1.sql
-- include: functions/expire_leases_v1.sql
-- include: functions/oldest_running_v1.sql
-- include: functions/rescue_v1.sql
-- include: functions/pause_v1.sql
-- include: functions/resume_v1.sql
-- include: functions/cancel_v1.sql
-- include: functions/redrive_v1.sql
-- include: functions/reprioritise_v1.sql
-- include: functions/discard_v1.sql
-- include: functions/flow_columns_v1.sql
-- include: functions/fold_flows_v1.sql
-- include: functions/record_latencies_v1.sql
-- include: functions/failing_v1.sql
-- include: functions/first_live_v1.sql
-- include: functions/list_ids_v1.sql

SELECT headgate.ensure_partitions_v1(7);
