-- Webhooks: endpoints, and events on their way to them (ADR 37).
-- compatible with: 6

-- Events are bits: 1 job.completed, 2 job.dead, 4 job.cancelled, 8 queue.ready, 16 ping. Modes: 0 fanout, 1 group, 2 hash.
CREATE TABLE headgate.webhooks (
    webhook_no       int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_no        int NOT NULL REFERENCES headgate.tenants,
    id               uuid NOT NULL,
    url              text NOT NULL CHECK (length(url) BETWEEN 1 AND 2048),
    events           smallint NOT NULL CHECK (events BETWEEN 1 AND 15),
    topics           text[] NOT NULL,                    -- as given; empty: all
    patterns         text[] NOT NULL CHECK (cardinality(patterns) >= 1),   -- the same for LIKE ANY
    description      text NOT NULL DEFAULT '',
    enabled          boolean NOT NULL DEFAULT true,
    named_only       boolean NOT NULL DEFAULT false,     -- only jobs that name it in their header headgate-webhook
    include_result   boolean NOT NULL DEFAULT false,
    mode             smallint NOT NULL DEFAULT 0 CHECK (mode BETWEEN 0 AND 2),
    group_name       text NOT NULL DEFAULT '',
    min_interval_ms  bigint NOT NULL DEFAULT 5000 CHECK (min_interval_ms >= 1000),
    ttl_ms           bigint CHECK (ttl_ms >= 1000),
    expires_at       timestamptz,                        -- then it is deleted
    version          int NOT NULL DEFAULT 1,
    created_at       timestamptz NOT NULL,
    created_by       text NOT NULL,
    changed_at       timestamptz NOT NULL,
    changed_by       text NOT NULL,
    disabled_at      timestamptz,
    disabled_reason  text NOT NULL DEFAULT '',
    failing_since    timestamptz,                        -- the first failure since the last success
    served_at        timestamptz,                        -- when deliveries were claimed last: all get their turn
    look_at          timestamptz,                        -- queue.ready: when its topics are looked at next
    ready_at         timestamptz,                        -- when it got its last queue.ready: a group takes turns
    deleted          boolean NOT NULL DEFAULT false,     -- its deliveries are removed first, in parts
    UNIQUE (tenant_no, id),
    CHECK (NOT (enabled AND deleted)),
    CHECK (enabled = (disabled_at IS NULL)),
    CHECK ((mode = 0 /* fanout */) = (group_name = ''))
) WITH (fillfactor = 50);
-- What every flush of outcomes asks first: has its tenant an endpoint at all?
CREATE INDEX webhooks_enabled ON headgate.webhooks (tenant_no) WHERE enabled;
CREATE INDEX webhooks_looking ON headgate.webhooks (look_at) WHERE look_at IS NOT NULL AND enabled;

-- Apart from the endpoints: headgate_reader must not see them. They are kept as they are, since a signature needs them.
CREATE TABLE headgate.webhook_secrets (
    webhook_no  int NOT NULL REFERENCES headgate.webhooks ON DELETE CASCADE,
    secret      text NOT NULL,
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz,                             -- signs until then; NULL: the newest
    PRIMARY KEY (webhook_no, secret)
);

-- The outbox: one row per event and endpoint, written by the transaction that ends the job. No foreign keys: they would
-- lock the endpoint's row in every flush. State: 0 waiting, 1 sending (until next_at), 2 delivered, 3 failed.
CREATE TABLE headgate.webhook_deliveries (
    delivery_no  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id           uuid NOT NULL DEFAULT gen_random_uuid(),   -- the receiver sees it: one for all attempts
    tenant_no    int NOT NULL,
    webhook_no   int NOT NULL,
    event        smallint NOT NULL,
    state        smallint NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 3),
    at           timestamptz NOT NULL,                   -- when it happened; of a job: its finished_at
    topic_no     int,
    job_id       uuid,
    data         jsonb NOT NULL,
    attempts     int NOT NULL DEFAULT 0,                 -- also the fencing token of a claim
    round_from   int NOT NULL DEFAULT 0,                 -- attempts before the last resend: the schedule begins there
    next_at      timestamptz,                            -- when it is tried next; sending: when its lease ends
    ended_at     timestamptz,
    status       smallint,                               -- of the last attempt, as error
    error        text NOT NULL DEFAULT '',
    CHECK ((state < 2 /* delivered */) = (next_at IS NOT NULL)),
    CHECK ((state < 2 /* delivered */) = (ended_at IS NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
CREATE UNIQUE INDEX webhook_deliveries_id ON headgate.webhook_deliveries (tenant_no, id);
CREATE INDEX webhook_deliveries_due ON headgate.webhook_deliveries (webhook_no, next_at) WHERE next_at IS NOT NULL;
CREATE INDEX webhook_deliveries_sending ON headgate.webhook_deliveries (webhook_no) WHERE state = 1 /* sending */;
CREATE INDEX webhook_deliveries_listed ON headgate.webhook_deliveries (webhook_no, delivery_no);
CREATE INDEX webhook_deliveries_ended ON headgate.webhook_deliveries (ended_at) WHERE ended_at IS NOT NULL;

-- What became of each attempt, for people. Goes with its delivery.
CREATE TABLE headgate.webhook_attempts (
    delivery_no  bigint NOT NULL,
    attempt      int NOT NULL,
    at           timestamptz NOT NULL,
    duration_ms  int NOT NULL,
    status       smallint,
    response     text NOT NULL DEFAULT '',
    error        text NOT NULL DEFAULT '',
    PRIMARY KEY (delivery_no, attempt)
);

-- queue.ready: the last known state of a topic, and when it was last sent. By subscription: an endpoint, or a group.
CREATE TABLE headgate.webhook_ready (
    tenant_no     int NOT NULL,
    subscription  text NOT NULL,
    topic_no      int NOT NULL,
    ready         boolean NOT NULL,
    interval_ms   bigint NOT NULL,
    sent_at       timestamptz NOT NULL,
    PRIMARY KEY (tenant_no, subscription, topic_no)
) WITH (fillfactor = 50);

-- include: functions/webhook_ended_v1.sql
-- include: functions/webhook_ready_v1.sql
-- include: functions/claim_deliveries_v1.sql
-- include: functions/record_delivery_v1.sql
-- include: functions/forget_deliveries_v1.sql
