-- Durable operations over a filter, and the audit of operators.
COMMENT ON TABLE headgate.dispatch_control IS 'what is paused';
