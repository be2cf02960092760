-- What an instance calls besides the flushes: its second's tick, and the return of a worker.
-- compatible with: 1

-- include: functions/tick_v1.sql
-- include: functions/abandon_undeclared_v1.sql
-- include: functions/progress_v1.sql
