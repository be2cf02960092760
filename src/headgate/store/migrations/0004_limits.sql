-- Limits, order and fair shares by key.
COMMENT ON TABLE headgate.limit_usage IS 'what each limited topic and key uses now';
