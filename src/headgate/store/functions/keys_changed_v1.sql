-- Counts up the version of the API keys in the transaction of a change, also of one in SQL: servers compare it, and read the
-- keys that they know when it has changed.
CREATE FUNCTION headgate.keys_changed_v1() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE headgate.key_changes SET version = version + 1;
    RETURN NULL;
END $$;
