-- What an instance calls besides the flushes: its second's tick, and the return of a worker.
-- compatible with: 1

-- include: functions/tick_v1.sql
-- include: functions/scan_v1.sql
-- include: functions/abandon_undeclared_v1.sql
-- include: functions/progress_v1.sql
-- include: functions/add_log_lines_v1.sql
-- include: functions/forget_log_lines_v1.sql

-- Who changed what, for verbs that are not about one job (those are in job_events). Written by the verb's own transaction.
CREATE TABLE headgate.audit (
    audit_no   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL,
    tenant_no  int NOT NULL,                             -- 0: about everything
    actor      text NOT NULL,
    verb       text NOT NULL,                            -- pause, resume, configure_topic, put_schedule, …
    target     text NOT NULL,                            -- what it was done to, in words: topic mail, schedule nightly
    reason     text NOT NULL DEFAULT '',
    detail     jsonb,                                    -- what was before and what is now
    xid        xid8 NOT NULL DEFAULT pg_current_xact_id()
);
CREATE INDEX audit_of_tenant ON headgate.audit (tenant_no, audit_no);
CREATE INDEX audit_followed ON headgate.audit (tenant_no, xid);      -- for the stream of events
