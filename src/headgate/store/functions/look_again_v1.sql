-- When to look again at a schedule whose topic is full: after a second at first, after 15 at the most.
CREATE FUNCTION headgate.look_again_v1(since_ timestamptz, now_ timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE AS $$
    SELECT now_ + least(interval '15 seconds', greatest(interval '1 second', (now_ - since_) / 4))
$$;
