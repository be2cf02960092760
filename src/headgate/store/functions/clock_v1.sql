-- The one clock of leases, due times and stamps. now() would be the start of the caller's transaction; this is the time
-- of the call. A function of ours, so that a test can put another clock in its place and step it both ways.
CREATE FUNCTION headgate.clock_v1() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT pg_catalog.clock_timestamp() $$;
