-- For applications: submit a job inside your own transaction, from any language. It is there if and only if you commit.
--     SELECT headgate.submit('send-email', '{"to": "a@b.example"}'::jsonb, priority => 10);
-- Returns the job's id: the first job's when the same id or key was submitted before, the live job's when it has the same
-- unique key. headgate.submit_returning also says whether the job was created. At REPEATABLE READ and SERIALIZABLE
-- an id that the transaction's snapshot does not know is refused (25000): leave it out. A key works at every level; a
-- submit of it that the snapshot does not show is a serialization failure (40001), and the retry finds it. A unique key,
-- depends_on and batch need READ COMMITTED (add_dependencies_v1), and lock the jobs they name until the transaction ends.
-- PostgreSQL sends the notification that wakes servers at the commit (ADR 33). SET headgate.wake = off leaves it out.
-- Attempts, retries and priority are the topic's unless given: what an operator has set, or its handler declares.
-- A role may call it for the tenants that the owner of the schema has allowed it:
--     SELECT headgate.allow_submit('app', 'acme');
CREATE FUNCTION headgate.submit_returning(
    topic text, payload bytea, tenant text DEFAULT 'default', priority int DEFAULT NULL, delay interval DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, max_attempts int DEFAULT NULL, key text DEFAULT NULL,
    key_window interval DEFAULT '24 hours', id uuid DEFAULT NULL, headers jsonb DEFAULT NULL, tags text[] DEFAULT '{}',
    limit_key text DEFAULT NULL, deadline timestamptz DEFAULT NULL, unique_key text DEFAULT NULL,
    on_conflict text DEFAULT 'keep', debounce_max interval DEFAULT NULL, depends_on uuid[] DEFAULT '{}',
    needs text DEFAULT 'succeeded', on_parent_failure text DEFAULT 'cancel', batch uuid DEFAULT NULL,
    retry jsonb DEFAULT NULL, declared jsonb DEFAULT NULL)
RETURNS TABLE (job_id uuid, created boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    v_problem text;
    v_tenant  int;
    v_topic   record;
    v_id      uuid := id;
    v_said    record;
    v_now     timestamptz := headgate.clock_v1();
    -- As they will be stored: rounded up, and in the one length of a month and a year that arithmetic uses (comparing
    -- intervals uses another one). Numeric, because an interval may be infinite.
    v_delay   numeric := ceil(extract(epoch FROM delay) * 1000);
    v_window  numeric := ceil(extract(epoch FROM key_window) * 1000);
    v_tags    text[] := coalesce(tags, '{}');
    v_parents uuid[] := coalesce(depends_on, '{}');
    v_mode    int := array_position(ARRAY['keep', 'replace', 'reschedule'], on_conflict) - 1;
    v_most    numeric := ceil(extract(epoch FROM debounce_max) * 1000);
    v_policy  int;
    v_known   boolean := id IS NOT NULL;      -- whether it may have been submitted before
    v_link    record;                         -- why its dependencies were not written
    v_flags   int;
    -- Control and bidirectional characters. E'': a caller may have switched standard_conforming_strings off.
    v_unfit   text := E'[\\u0001-\\u001f\\u007f-\\u009f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]';
BEGIN
    -- The same limits as domain/limits.py; a test holds the two together.
    v_problem := CASE
        WHEN topic IS NULL OR topic !~ '^[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}$' OR topic ~ '[.][.]|//' THEN
            'topic: must be 1 to 200 characters of A-Z a-z 0-9 . _ : / -, starting with a letter or digit, without ".." or "//"'
        WHEN tenant IS NULL OR tenant !~ '^[a-z0-9][a-z0-9-]{0,62}$' THEN
            'tenant: must be 1 to 63 characters of a-z 0-9 -, starting with a letter or digit'
        WHEN payload IS NULL THEN 'payload: is missing; pass an empty value for a job without one'
        WHEN octet_length(payload) > 1048576 THEN
            format('payload: %s bytes is over the limit of 1048576 bytes', octet_length(payload))
        WHEN delay IS NOT NULL AND run_at IS NOT NULL THEN 'delay: give either delay or run_at, not both'
        WHEN v_delay < 0 OR v_delay > 157680000000 THEN 'delay: must be between 0 and 1825 days'
        -- In hours: a day of the caller's time zone may have 23 or 25.
        WHEN run_at < '2000-01-01 00:00:00+00' OR run_at > v_now + interval '43800 hours' THEN
            'run_at: must be between 2000-01-01 and 1825 days from now'
        -- Of an id that may have been submitted before, it may have passed since.
        WHEN deadline <= v_now AND id IS NULL THEN 'deadline: has passed; give a later one, or none'
        WHEN deadline < '2000-01-01 00:00:00+00' OR deadline > v_now + interval '43800 hours' THEN
            'deadline: must be between 2000-01-01 and 1825 days from now'
        WHEN deadline <= run_at OR (id IS NULL AND deadline <= v_now + v_delay::float8 * interval '1 ms') THEN
            'deadline: must be after the time the job is due (run_at or delay)'
        WHEN jsonb_typeof(declared) <> 'object' THEN 'declared: must be a JSON object with priority, max_attempts and retry'
        WHEN CASE jsonb_typeof(declared -> 'priority') WHEN 'null' THEN false WHEN 'number' THEN
                 (declared ->> 'priority')::numeric NOT BETWEEN -2147483648 AND 2147483647
                 OR (declared ->> 'priority')::numeric % 1 <> 0 ELSE declared ? 'priority' END THEN
            'declared: priority must be a whole number from -2147483648 to 2147483647'
        WHEN CASE jsonb_typeof(declared -> 'max_attempts') WHEN 'null' THEN false WHEN 'number' THEN
                 (declared ->> 'max_attempts')::numeric NOT BETWEEN 1 AND 10000
                 OR (declared ->> 'max_attempts')::numeric % 1 <> 0 ELSE declared ? 'max_attempts' END THEN
            'declared: max_attempts must be a whole number from 1 to 10000'
        WHEN max_attempts < 1 OR max_attempts > 10000 THEN 'max_attempts: must be between 1 and 10000'
        WHEN length(key) NOT BETWEEN 1 AND 255 OR key ~ v_unfit THEN
            'key: must be 1 to 255 characters, none of them a control character'
        WHEN v_window IS NULL OR v_window < 1000 OR v_window > 31536000000 THEN
            'key_window: must be between 1 second and 365 days'
        WHEN id::text !~ '^.{14}[78].{4}[89ab]' THEN      -- version and variant
            'id: must be a UUID of version 7 or 8; leave it out, or pass a key to submit only once'
        WHEN length(limit_key) NOT BETWEEN 1 AND 255 OR limit_key ~ v_unfit THEN
            'limit_key: must be 1 to 255 characters, none of them a control character'
        WHEN cardinality(v_tags) > 20
          OR EXISTS (SELECT FROM unnest(v_tags) AS t WHERE coalesce(length(t), 0) NOT BETWEEN 1 AND 100 OR t ~ v_unfit) THEN
            'tags: at most 20, each of 1 to 100 characters, none of them a control character'
        WHEN jsonb_typeof(headers) <> 'object'
          OR (SELECT count(*) > 32 OR sum(octet_length(h.key) + octet_length(h.value #>> '{}')) > 8192
                  OR bool_or(jsonb_typeof(h.value) <> 'string' OR h.key !~ '^[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}$'
                             OR h.value #>> '{}' ~ v_unfit)
                FROM jsonb_each(CASE WHEN jsonb_typeof(headers) = 'object' THEN headers END) AS h) THEN
            'headers: must be a JSON object of at most 32 texts on one line, 8192 bytes with their names; a name has 1 to 100 '
            'characters of A-Z a-z 0-9 . _ : / -, starting with a letter or digit'
        WHEN length(unique_key) NOT BETWEEN 1 AND 255 OR unique_key ~ v_unfit THEN
            'unique_key: must be 1 to 255 characters, none of them a control character'
        WHEN v_mode IS NULL THEN 'on_conflict: must be keep, replace or reschedule'
        WHEN v_most < 1 OR v_most > 157680000000 THEN 'debounce_max: must be between 1 millisecond and 1825 days'
        WHEN v_most IS NOT NULL AND v_mode = 0 THEN
            'debounce_max: has no meaning with keep; set on_conflict to reschedule or replace'
        WHEN cardinality(v_parents) > 1000 THEN
            format('depends_on: %s jobs is over the limit of 1000 jobs; submit them as a batch', cardinality(v_parents))
        WHEN EXISTS (SELECT FROM unnest(v_parents) AS p WHERE (p::text ~ '^.{14}[78].{4}[89ab]') IS NOT TRUE) THEN
            'depends_on: must be UUIDs of version 7 or 8'
        WHEN id = ANY (v_parents) THEN 'depends_on: a job cannot wait for itself; leave its own id out'
        WHEN (needs IN ('succeeded', 'ended')) IS NOT TRUE THEN 'needs: must be succeeded or ended'
        WHEN (on_parent_failure IN ('cancel', 'ignore', 'block')) IS NOT TRUE THEN
            'on_parent_failure: must be cancel, ignore or block' END;
    IF v_problem IS NOT NULL THEN
        RAISE EXCEPTION '%', v_problem USING ERRCODE = 'invalid_parameter_value', HINT = 'headgate code: invalid_input';
    END IF;
    -- Before anything is made for it: a tenant that is not there yet must look like one that is.
    IF NOT headgate.may_submit_v1(tenant) THEN
        RAISE EXCEPTION 'role "%" may not submit for tenant "%"', coalesce(nullif(current_setting('role'), 'none'), session_user),
            tenant USING ERRCODE = 'insufficient_privilege',
                   HINT = format('headgate code: permission_denied. The owner of the schema can allow it: '
                                 'SELECT headgate.allow_submit(%L, %L)',
                                 coalesce(nullif(current_setting('role'), 'none'), session_user), tenant);
    END IF;
    v_tenant := headgate.intern_tenant_v1(tenant);
    SELECT * INTO v_topic FROM headgate.intern_topics_v1(v_tenant, ARRAY[topic]);
    IF v_topic.name IS NULL THEN
        RAISE EXCEPTION 'topic: "%" is new, and tenant "%" has its quota of % topics; use a topic that exists, or raise '
            'max_topics of the tenant with headgate tenant set', topic, tenant, v_topic.quota
            USING ERRCODE = 'configuration_limit_exceeded', HINT = 'headgate code: quota_exceeded';
    END IF;
    IF octet_length(payload) > v_topic.max_payload_bytes THEN
        RAISE EXCEPTION 'payload: % bytes is over the limit of % bytes of topic "%" (max_payload_bytes)', octet_length(payload),
            v_topic.max_payload_bytes, topic USING ERRCODE = 'program_limit_exceeded', HINT = 'headgate code: too_large';
    END IF;
    -- With a limit key the job is due in a moment, and lined up by promotion: its key's row must not stay locked for as long
    -- as the caller's transaction takes.
    IF limit_key IS NOT NULL AND v_delay IS NULL AND coalesce(run_at <= v_now, true) THEN
        v_delay := 1;
        run_at := NULL;
    END IF;
    IF deadline IS NOT NULL THEN
        headers := coalesce(headers, '{}') || jsonb_build_object(
            '.deadline_us', (extract(epoch FROM deadline) * 1000000)::bigint::text);
    END IF;
    IF v_topic.payload_schema IS NOT NULL THEN      -- checked by the server that claims the job (dispatch/deadlines.py)
        headers := coalesce(headers, '{}') || '{".unchecked": "1"}';
    END IF;
    IF v_id IS NULL THEN      -- a UUIDv7: 48 bits of milliseconds, version, 74 random bits (version 18 has uuidv7())
        v_id := encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) PLACING
                    substring(int8send((extract(epoch FROM v_now) * 1000)::bigint) FROM 3) FROM 1 FOR 6),
                    52, 1), 53, 1), 'hex')::uuid;
    END IF;
    -- For what this statement makes claimable, whichever function writes it (the trigger of headgate.arrivals).
    PERFORM set_config('headgate.submits', CASE WHEN coalesce(lower(current_setting('headgate.wake', true)), '')
        IN ('off', 'false', 'no', '0') THEN '' ELSE 'wake' END, true);
    -- What the caller leaves out, the rules of the topic say; where there is none, what the caller knows as declared by the
    -- handler; and else submit_v1.
    priority := coalesce(priority, v_topic.priority, (declared ->> 'priority')::numeric::int, 0);
    max_attempts := coalesce(max_attempts, v_topic.max_attempts, (declared ->> 'max_attempts')::numeric::int);
    IF retry IS NULL AND v_topic.policy_no IS NULL THEN
        retry := nullif(declared -> 'retry', 'null');
    END IF;
    v_policy := CASE WHEN retry IS NULL THEN v_topic.policy_no ELSE headgate.intern_retry_v1(v_tenant, retry) END;
    IF unique_key IS NOT NULL OR batch IS NOT NULL OR cardinality(v_parents) > 0 THEN
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            RAISE EXCEPTION 'unique_key, depends_on and batch need READ COMMITTED, not %: in one snapshot, a job that has ended '
                'since would still look alive', upper(current_setting('transaction_isolation'))
                USING ERRCODE = 'invalid_transaction_state', HINT = 'headgate code: isolation_level';
        END IF;
        v_parents := ARRAY(SELECT DISTINCT p FROM unnest(v_parents) AS p);
        FOR v_round IN 1 .. 50 LOOP      -- nearly always one; 13: another submit, or the end of a job, came in between
            SELECT d.code, d.job_id INTO v_link FROM headgate.add_dependencies_v1(
                v_tenant, ARRAY[v_id], ARRAY[v_topic.topic_no], ARRAY[v_known],
                CASE WHEN unique_key IS NULL THEN '{}'::int[] ELSE ARRAY[1] END,
                CASE WHEN unique_key IS NULL THEN '{}'::text[] ELSE ARRAY[unique_key] END,
                ARRAY[CASE needs WHEN 'succeeded' THEN 0 ELSE 1 END]::smallint[],
                ARRAY[CASE on_parent_failure WHEN 'cancel' THEN 0 WHEN 'ignore' THEN 1 ELSE 2 END]::smallint[],
                array_fill(1, ARRAY[cardinality(v_parents)]), v_parents,
                CASE WHEN batch IS NULL THEN '{}'::int[] ELSE ARRAY[1] END,
                CASE WHEN batch IS NULL THEN '{}'::uuid[] ELSE ARRAY[batch] END,
                '{}', '{}', '{}') AS d;
            EXIT WHEN v_link.code IS DISTINCT FROM 13;
        END LOOP;
        -- A claim passes over jobs that this transaction has locked: they are looked at again after it.
        PERFORM headgate.arrived_v1(
            v_tenant, v_parents || CASE WHEN v_link.code IN (1, 2) THEN ARRAY[v_link.job_id] ELSE '{}'::uuid[] END);
        CASE
            WHEN v_link.code IS NULL THEN
                v_flags := CASE WHEN unique_key IS NULL THEN 0 ELSE 2048 /* unique */ END
                         + CASE WHEN cardinality(v_parents) > 0 THEN 768 /* waits, has_parents */ ELSE 0 END
                         + CASE WHEN batch IS NULL THEN 0 ELSE 1056 /* has_dependants, in_batch */ END;
            WHEN v_link.code IN (1, 2) THEN      -- job_id is live under the key; 2: this very submit has changed it before
                IF v_link.code = 1 AND v_mode > 0 THEN
                    PERFORM headgate.push_unique_v1(
                        v_tenant, ARRAY[v_link.job_id], ARRAY[v_mode]::smallint[], ARRAY[v_most::bigint], ARRAY[run_at],
                        ARRAY[v_delay::bigint], ARRAY[payload], ARRAY[priority], ARRAY[v_id]);
                END IF;
                PERFORM headgate.wake_tick_v1();
                RETURN QUERY SELECT v_link.job_id, false;
                RETURN;
            WHEN v_link.code = 10 THEN
                RAISE EXCEPTION 'no parent job "%"', v_link.job_id
                    USING ERRCODE = 'no_data_found', HINT = 'headgate code: not_found';
            WHEN v_link.code = 11 THEN
                RAISE EXCEPTION 'no batch "%"', v_link.job_id USING ERRCODE = 'no_data_found', HINT = 'headgate code: not_found';
            WHEN v_link.code = 12 THEN
                RAISE EXCEPTION 'batch % is sealed and takes no more jobs; open another one', v_link.job_id
                    USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'headgate code: batch_sealed';
            WHEN v_link.code = 13 THEN
                RAISE EXCEPTION 'job %: others with its unique key came and went all the time; run the transaction again', v_id
                    USING ERRCODE = 'serialization_failure', HINT = 'headgate code: store_busy';
            ELSE      -- 20: it was submitted before, and its dependencies stand
                v_known := true;
        END CASE;
    END IF;
    SELECT s.receipt, s.job_id, s.detail INTO v_said FROM headgate.submit_v1(
        ARRAY[v_tenant], ARRAY[v_id], ARRAY[v_topic.topic_no], ARRAY[payload], ARRAY[priority],
        ARRAY[CASE WHEN v_topic.ageing_step_us IS NULL THEN -1 - priority ELSE -1 END],
        ARRAY[-coalesce(priority * v_topic.ageing_step_us, 0)],
        ARRAY[v_delay::bigint], ARRAY[run_at],
        ARRAY[max_attempts], ARRAY[v_policy],
        ARRAY[headers],
        CASE WHEN v_known THEN ARRAY[1] ELSE '{}'::int[] END,
        CASE WHEN key IS NULL THEN '{}'::int[] ELSE ARRAY[1] END,
        CASE WHEN key IS NULL THEN '{}'::text[] ELSE ARRAY[key] END,
        CASE WHEN key IS NULL THEN '{}'::bytea[]
             ELSE ARRAY[substring(sha256(convert_to(topic, 'UTF8') || E'\\x00'::bytea || payload) FOR 16)] END,
        CASE WHEN key IS NULL THEN '{}'::bigint[] ELSE ARRAY[v_window::bigint] END,
        array_fill(1, ARRAY[cardinality(v_tags)]), v_tags,
        CASE WHEN limit_key IS NULL THEN '{}'::int[] ELSE ARRAY[1] END,
        CASE WHEN limit_key IS NULL THEN '{}'::text[] ELSE ARRAY[limit_key] END,
        CASE WHEN v_flags IS NULL THEN '{}'::smallint[] ELSE ARRAY[v_flags]::smallint[] END) AS s;
    IF v_said.receipt = 2 THEN
        RAISE EXCEPTION '%: job % was submitted before with another body', CASE WHEN key IS NULL THEN 'id' ELSE 'key' END,
            v_said.job_id USING ERRCODE = 'unique_violation', HINT = 'headgate code: conflict';
    END IF;
    IF v_said.receipt = 3 AND v_said.detail[3] = 3 THEN
        RAISE EXCEPTION 'payload: % bytes is over the limit of % bytes of tenant "%" (max_payload_bytes)', v_said.detail[2],
            v_said.detail[1], tenant USING ERRCODE = 'program_limit_exceeded', HINT = 'headgate code: too_large';
    ELSIF v_said.receipt = 3 AND v_said.detail[3] > 0 THEN
        RAISE EXCEPTION 'tenant "%" has % of % (%)', tenant, v_said.detail[2], v_said.detail[1],
            CASE v_said.detail[3] WHEN 1 THEN 'max_backlog: jobs that wait' ELSE 'max_stored_bytes' END
            USING ERRCODE = 'configuration_limit_exceeded', HINT = 'headgate code: quota_exceeded';
    ELSIF v_said.receipt = 3 THEN
        RAISE EXCEPTION 'topic "%" has % jobs waiting, and its limit is %', topic, v_said.detail[2], v_said.detail[1]
            USING ERRCODE = 'configuration_limit_exceeded', HINT = 'headgate code: backlog_full';
    END IF;
    IF v_said.receipt IS NOT NULL AND v_flags IS NOT NULL THEN      -- submitted before, by its key: no second job waits
        PERFORM headgate.remove_dependencies_v1(
            v_tenant, CASE WHEN unique_key IS NULL THEN '{}'::uuid[] ELSE ARRAY[v_id] END,
            array_fill(v_id, ARRAY[cardinality(v_parents)]), v_parents,
            CASE WHEN batch IS NULL THEN '{}'::uuid[] ELSE ARRAY[v_id] END,
            CASE WHEN batch IS NULL THEN '{}'::uuid[] ELSE ARRAY[batch] END);
    ELSIF v_said.receipt IS NULL AND (cardinality(v_parents) > 0 OR v_delay BETWEEN 1 AND 1000
                                      OR (run_at > v_now AND run_at <= v_now + interval '1 second')) THEN
        PERFORM headgate.wake_tick_v1();      -- not claimable now, and perhaps sooner than by the tick of every second
    END IF;
    RETURN QUERY SELECT coalesce(v_said.job_id, v_id), v_said.receipt IS NULL;
END $$;
