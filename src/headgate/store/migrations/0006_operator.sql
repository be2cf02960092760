-- The operator's verbs on single jobs and on what is dispatched.
COMMENT ON TABLE headgate.instances IS 'every server process that ever served';
