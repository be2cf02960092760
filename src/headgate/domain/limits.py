"""Every limit, once. A limit is part of the interface: raising one is an *Upgrade note*, lowering one breaks callers.

Sizes of bytes are bytes; sizes of text are characters (code points), which PostgreSQL's `length()` counts alike.
Times in the hot path are whole milliseconds; the few that people configure are `timedelta`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

# --- payload and result ---------------------------------------------------------------------------------------------
PAYLOAD_MAX_BYTES: Final = 1_048_576
"""1 MiB: a queue moves references, not files; a flush is bounded to 1–2 MB, so one job must fit into one."""
PAYLOAD_INLINE_MAX_BYTES: Final = 1_024
"""Larger payloads go to a write-once side table, else claim and settle would rewrite them with the row."""
RESULT_MAX_BYTES: Final = 1_048_576

# --- names ----------------------------------------------------------------------------------------------------------
TOPIC_MAX_CHARS: Final = 200
TOPIC_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._:/-]*"
"""A topic stands in URLs, metric labels, log lines and shell commands: ASCII that needs no quoting in any of them.
It starts with a letter or digit, so that it is never taken for a command-line flag or a hidden file."""
TOPIC_FORBIDDEN: Final = ("..", "//")
"""Proxies and browsers fold `a/../b` and `a//b` in a path: a request would reach another topic than it names."""
TENANT_MAX_CHARS: Final = 63
TENANT_PATTERN: Final = r"[a-z0-9][a-z0-9-]{0,62}"
"""One DNS label in lower case: a tenant may become a host name, and two tenants must not differ by case alone."""
WORKER_ID_MAX_CHARS: Final = 200
CLIENT_MAX_CHARS: Final = 100
TOPICS_MAX: Final = 10_000
RETRY_POLICIES_MAX: Final = 1_000
"""Of a tenant, unless its row in headgate.tenants says otherwise (max_topics, max_policies). Names are never removed,
and every instance keeps them all in memory."""
KEY_NAME_MAX_CHARS: Final = 100
KEYS_MAX: Final = 1_000
"""API keys of a tenant that are not revoked."""
PATTERNS_MAX: Final = 1_000
"""Names and patterns of topics that one credential lists."""
SESSION_DEMANDS_MAX: Final = 64
"""Combinations of topics and lease that one worker session may have credit for: each is claimed for by itself."""
HANDLED_TOPICS_MAX: Final = 1_000
"""Topics of connected workers that an instance reports to others, and a status to its caller."""
REPORTED_WORKERS_MAX: Final = 200
"""Workers that an instance reports to others by name, of all tenants: it is rewritten every few seconds, and a thousand
sessions must not cost more than these."""
CONSUMERS_MAX: Final = 1_000_000
SESSION_UNKNOWN_TOPICS_MAX: Final = 1_000
"""Topics without any job so far that one worker session waits for: they are kept by name, in memory only."""

# --- order ----------------------------------------------------------------------------------------------------------
EPOCH_MAX: Final = 2**53 - 1  # the largest integer that a double, and so JavaScript's number, holds
PRIORITY_MIN: Final = -(2**31)
PRIORITY_MAX: Final = 2**31 - 1
PRIORITY_DEFAULT: Final = 0
PRIORITY_TIERS: Final[Mapping[str, int]] = MappingProxyType({"bulk": -10, "normal": 0, "high": 10, "urgent": 20})
"""Names for people; only the number is stored. Ten apart, so that there is room between two tiers."""
AGEING_STEP_MIN: Final = timedelta(milliseconds=1)
AGEING_STEP_MAX: Final = timedelta(hours=1)
"""Per unit of priority. 2^31 units × 3.6e9 µs = 7.7e18 < 2^63, so the order key of any priority fits a bigint."""

# --- time -----------------------------------------------------------------------------------------------------------
DELAY_MAX_MS: Final = 157_680_000_000
"""5 years of 365 days. What lies further ahead is a mistake in the unit more often than a plan."""
PAUSE_MIN: Final = timedelta(seconds=1)
PAUSE_MAX: Final = timedelta(milliseconds=DELAY_MAX_MS)
"""How long a pause that ends by itself can be said to last; its end can also be given as a time."""
RUN_AT_EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""An older time is a zero value or a wrong unit. A time in the past is else legal, and means now."""
LEASE_MIN: Final = timedelta(seconds=1)
LEASE_MAX: Final = timedelta(hours=24)
LEASE_DEFAULT: Final = timedelta(seconds=60)
RECONNECT_GRACE_DEFAULT: Final = timedelta(seconds=10)
"""How long a worker that lost its connection is waited for. Workers try at least once a second while they hold jobs."""
REAP_AT_ONCE: Final = 1_000
"""Attempts that one call of the watchdog ends."""

# --- attempts and backoff -------------------------------------------------------------------------------------------
MAX_ATTEMPTS_LIMIT: Final = 10_000
MAX_ATTEMPTS_DEFAULT: Final = 20
"""With the default backoff (attempt² seconds) the 20th and last run comes 41 minutes after the first: an outage of a
remote service is ridden out, and a job that can never succeed is with the dead letters within the hour."""
RETRY_BASE_MIN_MS: Final = 1
RETRY_CAP_MAX_MS: Final = 2_592_000_000
"""30 days; the base has no limit of its own but the cap. The largest product, 2.6e9 × 2^31, still fits a bigint."""
RETRY_DELAYS_MAX: Final = 100
RETRY_BASE_DEFAULT_MS: Final = 1_000
RETRY_CAP_DEFAULT_MS: Final = 86_400_000

# --- batches --------------------------------------------------------------------------------------------------------
SUBMIT_FLUSH_MAX_ROWS: Final = 5_000
SUBMIT_BATCH_MAX: Final = 10_000
CLAIM_MAX: Final = 5_000
CLAIM_WAIT_MAX_MS: Final = 60_000
"""How long a single claim may wait for jobs: shorter than what proxies allow a silent request."""
SETTLE_FLUSH_MAX_ROWS: Final = 5_000
HEARTBEAT_MAX_JOBS: Final = 2_000
"""Jobs named in one unary Heartbeat: one statement's worth. To renew more, send several, or use a Work stream."""
HELD_MAX: Final = 100_000
"""Jobs that one worker session may hold."""
VERB_MAX_JOBS: Final = 1_000
"""Jobs named in one call of an operator's verb; more are a filter's affair, which goes in chunks."""
DECLARATIONS_MAX: Final = 1_000
"""Topics that a worker declares in one call."""
EVENT_FILTER_MAX: Final = 100
"""Topics, or jobs, that a stream of events names."""
PAGE_MAX: Final = 1_000
JOB_EVENTS_MAX: Final = 1_000
"""Events of a job in one answer: the newest, or those before a given one."""
PAGE_DEFAULT: Final = 50
NAMES_PAGE: Final = 100
"""Entries of a page of names (topics, tenants, keys, sessions), of versions of a policy, and of the audit log."""
SPAN_MAX_MS: Final = 10**15
"""Of any span, before the rule of its field: far above all of them, and safe to compute with."""
LIST_LOOK_AT: Final = 10_000
"""Jobs that one page of a list looks at: at 3 to 10 microseconds each, the worst page costs about 100 ms."""

# --- requests, before anything of them is parsed ---------------------------------------------------------------------
MESSAGE_MAX_BYTES: Final = 8_388_608
"""8 MiB: any single message."""
JOB_REQUEST_MAX_BYTES: Final = 2_097_152
"""2 MiB: a request with one job in it. A job that is a little too large is then refused by the field that is."""
TOPICS_REQUEST_MAX_BYTES: Final = 524_288
"""512 KiB: a request that names up to 1,000 topics."""
TOPIC_REQUEST_MAX_BYTES: Final = 262_144
"""256 KiB: a request with the policy of one topic, and so with a JSON Schema of up to 64 KiB."""
SMALL_REQUEST_MAX_BYTES: Final = 65_536
"""64 KiB: every other request: names, a filter, 1,000 ids."""
COUNTED_FROM_BYTES: Final = 16_384
"""Elements of larger messages are counted before they are parsed. An empty element has 2 bytes on the wire and up to
200 in memory, so what is not counted costs 1.6 MB at most."""
LIST_MAX: Final = 20_000
"""Elements of a list that has no narrower limit when it is counted before parsing. What its method takes is less, and
is reported by field."""
PROGRESS_MAX_JOBS: Final = 10_000
"""Reports of progress, and requests for longer leases, in one message."""
LOGS_MAX_JOBS: Final = 2_000
LOGS_MAX_LINES: Final = 10_000
"""Jobs with log lines in one message, and lines of all of them."""
REQUESTS_AT_ONCE: Final = 16
HELLOS_AT_ONCE: Final = 4
"""Requests of calls, and first messages of streams, of one credential that are received at the same time; others wait
for their turn. Each may take up to 8 MiB until it is whole."""
TURN_WITHIN: Final = timedelta(seconds=30)
"""How long one waits for that turn. The times below begin with it."""
TURN_AGAIN_MS: Final = 1_000
"""After what time to try again when the turn did not come."""
HELLO_WITHIN: Final = timedelta(seconds=10)
"""From the opening of a stream to the whole of its first message."""
REQUEST_WITHIN: Final = timedelta(seconds=20)
"""From the beginning of a call to the whole of its request: 8 MiB by a link of 3.4 Mbit/s."""

# --- HTTP -----------------------------------------------------------------------------------------------------------
HTTP_HEADERS_MAX_BYTES: Final = 16_384
HTTP_HEADERS_WITHIN: Final = timedelta(seconds=10)
"""From the opening of a connection, or the first byte of a further request, to the end of its headers."""
HTTP_IDLE: Final = timedelta(seconds=75)
"""Between two requests: longer than load balancers keep a connection, so that they close it and not the server."""
HTTP_UNREAD: Final = timedelta(seconds=30)
"""How long a peer may not read at all of an answer."""

# --- what travels with a job ----------------------------------------------------------------------------------------
TAGS_MAX: Final = 20
TAG_MAX_CHARS: Final = 100
KEY_MAX_CHARS: Final = 255
"""Of an idempotency key, and of a unique key."""
KEY_WINDOW_MIN: Final = timedelta(seconds=1)
KEY_WINDOW_MAX: Final = timedelta(days=365)
KEY_WINDOW_DEFAULT: Final = timedelta(hours=24)
HEADERS_MAX: Final = 32
HEADER_NAME_MAX_CHARS: Final = 100
HEADER_NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._:/-]*"
"""The topic's alphabet, for its reasons: a header may be passed on as an HTTP header or a log field."""
HEADERS_TOTAL_MAX_BYTES: Final = 8_192
"""Names and values together, in UTF-8."""

# --- jobs that hang together ----------------------------------------------------------------------------------------
PARENTS_MAX: Final = 1_000
"""Each is locked while the child is made. Who waits for more submits them as a batch, which locks none."""
BATCH_NAME_MAX_CHARS: Final = 200
BATCH_EXPIRY_MIN: Final = timedelta(seconds=1)
BATCH_EXPIRY_MAX: Final = timedelta(days=365)
BATCH_EXPIRY_DEFAULT: Final = timedelta(hours=24)
"""How long a batch may stay open: one whose submitter died is closed then, and its callback cancelled."""
BATCH_COUNTED_MAX: Final = 10_000
"""How many members a status looks at, one by one."""
BATCH_LISTED_MAX: Final = 200
"""How many members of an open batch a list counts: a page has up to 1,000 batches."""
# --- schedules ------------------------------------------------------------------------------------------------------
SCHEDULE_NAME_PATTERN: Final = TOPIC_PATTERN
SCHEDULE_NAME_MAX_CHARS: Final = 200
CRON_MAX_CHARS: Final = 500
ZONE_MAX_CHARS: Final = 64
EVERY_MIN: Final = timedelta(seconds=1)
EVERY_MAX: Final = timedelta(days=366)
CATCH_UP_MAX: Final = 100
"""Jobs one schedule may make at once for occurrences that were missed: an outage must not end in a flood."""
OCCURRENCES_MAX: Final = 1_000

# --- what workers and operators say ---------------------------------------------------------------------------------
ERROR_TYPE_MAX_CHARS: Final = 200
ERROR_MESSAGE_MAX_CHARS: Final = 8_192
ERROR_TRACEBACK_MAX_CHARS: Final = 65_536
LAST_ERROR_MAX_CHARS: Final = 1_000
"""Of type and message, as the job itself keeps them (settle_other_v1); the history has them whole."""
REASON_MAX_CHARS: Final = 1_000
