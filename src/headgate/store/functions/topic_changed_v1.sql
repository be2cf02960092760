-- After any change of a topic, also a manual one, instances read it again (headgate.topics.changed_by).
CREATE FUNCTION headgate.topic_changed_v1() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.changed_by := pg_current_xact_id();
    RETURN NEW;
END $$;
CREATE TRIGGER topic_changed BEFORE UPDATE ON headgate.topics
    FOR EACH ROW EXECUTE FUNCTION headgate.topic_changed_v1();
