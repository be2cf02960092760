-- Schedules and what they made.
COMMENT ON TABLE headgate.schedule_jobs IS 'which schedule made which job';
