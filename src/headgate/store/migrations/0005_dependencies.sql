-- Unique jobs, dependencies and batches.
COMMENT ON TABLE headgate.job_dependencies IS 'which job waits for which';
