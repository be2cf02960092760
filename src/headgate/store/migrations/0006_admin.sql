-- The operator's verbs: moving jobs, quiet workers and those to stop, what each instance has connected, API keys.

-- Workers that are to get no more jobs for now, wherever they connect. Few rows, read by every tick as one hash and only
-- when that changed as rows; each has an end, so that a forgotten one does not keep a name from work forever.
CREATE TABLE headgate.quiet_names (
    tenant_no  int NOT NULL,
    worker     text NOT NULL CHECK (length(worker) BETWEEN 1 AND 200),
    reason     text NOT NULL DEFAULT '',
    quiet_by   text NOT NULL DEFAULT '',
    since      timestamptz NOT NULL,
    until      timestamptz NOT NULL CHECK (until > since),
    PRIMARY KEY (tenant_no, worker)
);
-- Workers that were asked to stop: processes that were connected at `since`, wherever they are or connect again. A later
-- process with the same name is not meant. Read as quiet_names is, by every tick as one hash.
CREATE TABLE headgate.worker_stops (
    tenant_no  int NOT NULL,
    worker     text NOT NULL CHECK (length(worker) BETWEEN 1 AND 200),
    reason     text NOT NULL DEFAULT '',
    asked_by   text NOT NULL DEFAULT '',
    since      timestamptz NOT NULL,
    until      timestamptz NOT NULL CHECK (until > since),
    PRIMARY KEY (tenant_no, worker)
);
-- Who is connected to an instance: one bounded summary per instance, whatever the number of its workers.
ALTER TABLE headgate.instances ADD COLUMN summary jsonb, ADD COLUMN summary_at timestamptz;

-- include: functions/job_states_v1.sql
-- include: functions/move_v1.sql
-- include: functions/oldest_pending_v1.sql
-- include: functions/record_ages_v1.sql
-- include: functions/running_jobs_v1.sql

-- API keys (ADR 44). Of a key only its SHA-256 is here. Servers keep the keys that they have met, and read them again when
-- the version has changed. last_used_at is written at most once a minute for each key, and is no change.
CREATE TABLE headgate.api_keys (
    id           text PRIMARY KEY CHECK (id ~ '^[a-z0-9]{8}$'),
    tenant_no    int NOT NULL,                           -- 0: of the scope system
    name         text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    digest       bytea NOT NULL CHECK (octet_length(digest) = 32),
    old_digest   bytea CHECK (octet_length(old_digest) = 32),    -- before the last rotation
    old_until    timestamptz,
    scopes       text[] NOT NULL CHECK (cardinality(scopes) > 0
                     AND scopes <@ ARRAY['submit', 'work', 'read', 'operate', 'admin', 'system']),
    topics       text[],                                 -- names and patterns; NULL: all of the tenant
    rates        jsonb,                                  -- by class: "100/1s:20"
    created_at   timestamptz NOT NULL,
    created_by   text NOT NULL,
    rotated_at   timestamptz,
    expires_at   timestamptz,
    revoked_at   timestamptz,
    revoked_by   text NOT NULL DEFAULT '',
    last_used_at timestamptz,
    CHECK ((old_digest IS NULL) = (old_until IS NULL)),
    CHECK (('system' = ANY (scopes)) = (tenant_no = 0)),
    CHECK (tenant_no <> 0 OR (cardinality(scopes) = 1 AND topics IS NULL))
);
CREATE UNIQUE INDEX api_keys_name ON headgate.api_keys (tenant_no, name) WHERE revoked_at IS NULL;
CREATE TABLE headgate.key_changes (
    version  bigint NOT NULL,
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row)
);
INSERT INTO headgate.key_changes (version) VALUES (0);

-- include: functions/keys_changed_v1.sql
CREATE TRIGGER changed AFTER INSERT OR DELETE OR TRUNCATE
    OR UPDATE OF tenant_no, name, digest, old_digest, old_until, scopes, topics, rates, expires_at, revoked_at
    ON headgate.api_keys FOR EACH STATEMENT EXECUTE FUNCTION headgate.keys_changed_v1();

-- Browsers that are signed in to the dashboard. A session has no rights of its own: its credential is asked at each request.
CREATE TABLE headgate.web_sessions (
    id                 text PRIMARY KEY CHECK (id ~ '^[a-z2-7]{10}$'),
    digest             bytea NOT NULL UNIQUE CHECK (octet_length(digest) = 32),     -- of the secret in the cookie
    tenant_no          int NOT NULL,                           -- 0: of the scope system
    subject            text NOT NULL,
    credential         text NOT NULL,                          -- what it ends with; no secret
    scopes             text[] NOT NULL,
    topics             text[],
    credential_expires float8,                                 -- of a JWT, which no list has: seconds since 1970
    created_at         timestamptz NOT NULL,
    expires_at         timestamptz NOT NULL,
    seen_at            timestamptz NOT NULL,
    address            text NOT NULL,
    agent              text NOT NULL
);
CREATE INDEX web_sessions_of_credential ON headgate.web_sessions (credential, created_at);
CREATE INDEX web_sessions_expiry ON headgate.web_sessions (expires_at);
