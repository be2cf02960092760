-- When to try a schedule again whose topic is full: after a quarter of the time that it waits, from 1 s to 15 s.
CREATE FUNCTION headgate.look_again_v1(since_ timestamptz, now_ timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE AS $$
    SELECT now_ + least(interval '15 seconds', greatest(interval '1 second', (now_ - since_) / 4))
$$;
