-- Durable operations over a filter, and what dead letters are grouped by.
-- compatible with: 6

-- One verb over everything a filter matches, walked from the newest id down; `below` is how far it has come. A row is held
-- (FOR UPDATE) by the transaction that works on its next chunk, so that the lock is the lease: it ends with its holder.
-- State: 0 pending, 1 running, 2 done, 3 cancelled, 4 failed. Verb: 1 cancel, 2 redrive, 3 discard, 4 reprioritise, 5 move.
CREATE TABLE headgate.bulk_operations (
    tenant_no         int NOT NULL,
    id                uuid NOT NULL,
    verb              smallint NOT NULL CHECK (verb BETWEEN 1 AND 5),
    state             smallint NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 4 /* pending to failed */),
    filter            text NOT NULL,
    topics            text[],                            -- what its starter's token permits; NULL: any
    parameters        jsonb NOT NULL DEFAULT '{}',
    per_second        int CHECK (per_second >= 1),
    as_of             timestamptz NOT NULL,              -- what was submitted or has ended later is no part of it
    below             uuid NOT NULL DEFAULT 'ffffffff-ffff-ffff-ffff-ffffffffffff',
    expected          bigint NOT NULL DEFAULT 0,         -- counted at the start, for people
    expected_exactly  boolean NOT NULL DEFAULT true,
    looked            bigint NOT NULL DEFAULT 0,
    matched           bigint NOT NULL DEFAULT 0,
    changed           bigint NOT NULL DEFAULT 0,
    skipped           bigint NOT NULL DEFAULT 0,
    errors            bigint NOT NULL DEFAULT 0,
    failures          int NOT NULL DEFAULT 0,            -- of the present chunk
    error             text NOT NULL DEFAULT '',
    who               text NOT NULL,
    credential        text NOT NULL DEFAULT '',          -- what it was started with, by its name; '': cannot be revoked
    reason            text NOT NULL DEFAULT '',
    instance_no       int,                               -- who worked on it last
    created_at        timestamptz NOT NULL,
    started_at        timestamptz,
    touched_at        timestamptz NOT NULL,              -- the least recently touched goes first: all get their turn
    rest_until        timestamptz NOT NULL,              -- a rate limit, or a chunk that failed
    finished_at       timestamptz,
    PRIMARY KEY (tenant_no, id),
    CHECK (matched = changed + skipped + errors),
    CHECK ((finished_at IS NOT NULL) = (state >= 2 /* done */))
) WITH (fillfactor = 50);
CREATE INDEX bulk_operations_active ON headgate.bulk_operations (touched_at) WHERE state IN (0, 1) /* pending, running */;

-- include: functions/list_ids_oldest_v1.sql
-- include: functions/hold_matched_v1.sql
-- include: functions/dead_letters_v1.sql
