"""The rows of the catalogue of bad input: where, what, what is expected; where each is tested, and what it waits for.

`python -m tests.catalogue` prints it with what covers each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tests.catalogue import admin, command_lines, submits, webhooks, work
from tests.catalogue.table import Case

CASES: list[Case] = [*submits.CASES, *work.CASES, *admin.CASES, *webhooks.CASES, *command_lines.CASES]


class Waits(StrEnum):
    """What is not there yet."""

    REST = "REST"
    DASHBOARD = "dashboard"
    PROFILES = "CLI profiles"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Rows `first` to `last`, which stand together. `tests`: by name, besides the cases of the table."""

    first: int
    last: int
    where: str
    given: str
    expected: str
    tests: tuple[str, ...] = ()
    waits: Waits | None = None  # for all of it; or, with tests or cases, for the rest of it


def _row(rows: str, where: str, given: str, expected: str, *tests: str, waits: Waits | None = None) -> Row:
    first, _, last = rows.partition("-")
    return Row(
        first=int(first), last=int(last or first), where=where, given=given, expected=expected, tests=tests, waits=waits
    )


_WIRE = "tests/catalogue/test_wire.py::"
_FRAMES = "tests/catalogue/test_frames.py::"
_PEERS = "tests/e2e/test_bad_peers.py::"
_CLI = "tests/catalogue/test_cli.py::"
_JWT = "tests/unit/test_jwt_tokens.py::"
_CONFIG = "tests/catalogue/test_config.py::"
_SDK = "tests/catalogue/test_sdk.py::"
_UNIT = "tests/unit/"

ROWS: list[Row] = [
    _row(
        "1-4", "submit", "topic empty, too long, with control characters, paths or escapes", "pattern and length shown"
    ),
    _row("5-6", "submit", "blank topic; line break or bidirectional override", "pattern and length shown"),
    _row("7", "submit", "payload one byte too long", "too_large with both sizes", waits=Waits.REST),
    _row(
        "8",
        "gRPC",
        "message over the size the port takes",
        "RESOURCE_EXHAUSTED; the connection lives",
        _WIRE + "test_a_message_over_the_limit_ends_its_call_and_not_the_connection",
    ),
    _row(
        "9-10",
        "submit",
        "JSON with \\u0000 or a lone surrogate",
        "legal: payloads are bytes, and come back as they were",
        _WIRE + "test_payloads_are_bytes_and_come_back_as_they_were",
    ),
    _row("11-20", "REST", "bodies, numbers, headers, methods", "400 to 431", waits=Waits.REST),
    _row("21", "static files", "10,000 ranges", "cheap 416 or 200", waits=Waits.DASHBOARD),
    _row("22-24", "submit", "priority out of range, 1.5, a word", "the range, or the tiers"),
    _row("25-27", "submit", "run_at in year 1 or 9999; without a zone", "the range; naive time refused"),
    _row("28-29", "submit", "max_attempts 0, -1, 10^9", "1 to 10,000"),
    _row("30", "submit", "lease or timeout 0, negative, 100 years", "the range"),
    _row("31", "submit", "backoff that makes no sense", "the field and its rule"),
    _row("32-33", "submit", "key empty, 1 KiB; used with another body", "the limit; conflict naming the first job"),
    _row(
        "34",
        "submit",
        "no jobs, 10,001, one bad of many",
        "the limit; a result each, or all or nothing",
        _FRAMES + "test_a_producer_frame_that_cannot_be_taken_is_answered_and_the_stream_lives",
    ),
    _row("35", "submit", "tags and headers: many, empty, no text", "the limit"),
    _row("36", "dependencies", "itself, a cycle, nobody, another tenant's", "dependency_cycle; not_found"),
    _row("37-40", "schedule", "cron with 3 or 6 fields, minute 60, never", "the field; a reason"),
    _row("41", "schedule", "zone unknown or with a path", "refused by name"),
    _row("42", "schedule", "a name that is taken", "already_exists"),
    _row("43", "complete", "unknown job; another tenant's", "the same text for both"),
    _row("44", "complete", "old epoch, 0, another job's", "stale, nothing changed"),
    _row("45", "complete", "result too long", "refused; the job stays leased", waits=Waits.REST),
    _row("46", "complete", "no outcome at all", "refused"),
    _row(
        "47",
        "heartbeat",
        "progress over 100 %, negative; too many held; after the end",
        "refused, and nothing renewed",
        _FRAMES + "test_what_a_beat_gets_wrong_is_reported_by_field_and_the_stream_lives",
    ),
    _row(
        "48",
        "stream",
        "first message not Hello; Hello twice",
        "stream ended; told, and the stream lives",
        _FRAMES + "test_a_stream_that_does_not_begin_with_hello_is_ended",
        _FRAMES + "test_a_hello_that_is_repeated_is_reported_and_the_stream_lives",
    ),
    _row(
        "49",
        "stream",
        "credit negative or 2^31; 10,000 topics",
        "the limit, by field",
        _FRAMES + "test_a_bad_ready_is_reported_by_field_and_the_stream_lives",
    ),
    _row(
        "50",
        "stream",
        "more streams on a connection or from an address than allowed; more connections than the process can have",
        "refused at the cap",
        _WIRE + "test_no_more_streams_than_the_cap_are_taken_on_one_connection",
        _WIRE + "test_no_more_streams_than_the_cap_are_taken_from_one_address",
        _WIRE + "test_more_connections_than_the_process_can_hold_are_refused_and_sessions_live",
    ),
    _row(
        "51",
        "stream",
        "open and cancel in a loop",
        "bounded, nothing left behind",
        _WIRE + "test_streams_opened_and_reset_in_a_loop_do_not_starve_others",
        _PEERS + "test_streams_opened_and_cancelled_in_a_loop_leave_nothing_behind",
    ),
    _row(
        "52",
        "stream",
        "pings every 10 ms",
        "GOAWAY: ENHANCE_YOUR_CALM",
        _WIRE + "test_who_pings_all_the_time_is_sent_away",
    ),
    _row(
        "53",
        "gRPC",
        "bytes that are no message; deep nesting; unknown enum",
        "invalid_input",
        _WIRE + "test_bytes_that_are_no_message_are_answered_by_a_sentence",
        "tests/fuzz/test_rpc_fuzz.py::test_no_bytes_make_a_call_the_servers_fault",
    ),
    _row(
        "54",
        "gRPC",
        "HTTP/1.1, TLS, noise on a plain port",
        "hung up on",
        _WIRE + "test_what_is_not_even_http2_is_hung_up_on",
    ),
    _row(
        "55",
        "gRPC",
        "deadline 0 or past; 64 KiB of metadata; bad base64",
        "DEADLINE_EXCEEDED; RESOURCE_EXHAUSTED; refused",
        _WIRE + "test_a_deadline_that_is_over_and_a_huge_header_are_refused",
        _WIRE + "test_headers_that_make_no_sense_end_their_stream_and_nothing_else",
    ),
    _row(
        "56",
        "gRPC",
        "unknown method; reflection when off",
        "UNIMPLEMENTED",
        _WIRE + "test_an_unknown_method_is_unimplemented",
    ),
    _row(
        "57-58",
        "auth",
        "no token, garbage; expired, of another audience",
        "one sentence for all",
        _WIRE + "test_tokens_that_are_none_are_refused_alike",
        _JWT + "test_a_token_with_a_wrong_claim_is_refused",
    ),
    _row(
        "59-62",
        "auth",
        "forged and oversized tokens",
        "refused, nothing fetched",
        _JWT + "test_algorithm_none_is_refused",
        _JWT + "test_a_public_key_is_never_a_shared_secret",
        _JWT + "test_only_the_algorithms_of_the_issuer_count_whatever_the_header_says",
        _JWT + "test_a_malformed_key_id_is_refused_without_a_fetch",
        _JWT + "test_a_huge_token_is_refused_unread",
    ),
    _row("63", "auth", "scope missing", "permission_denied naming it", _WIRE + "test_a_missing_scope_is_named"),
    _row("64", "list", "page size; cursor changed, of another filter", "refused by name"),
    _row("65", "list", "injections, wildcards, long and deep filters", "text, or a place in the text"),
    _row("66", "bulk", "no filter, no target, no verb", "nothing is ever larger than what was said"),
    _row(
        "67-71",
        "webhook",
        "private addresses, header injection",
        "refused when stored and when called",
        "tests/integration/webhooks/test_http.py::test_an_address_is_checked_again_when_a_request_is_sent",
    ),
    _row("72-73", "dashboard", "markup in names; foreign posts", "shown as text; 403", waits=Waits.DASHBOARD),
    _row("74", "CLI", "unknown command or option", "exit 2, the nearest one"),
    _row("75", "CLI", "bad JSON; a file that is not there", "exit 2, line and column, or the file"),
    _row("76", "CLI", "times and spans nobody can read", "exit 2, the forms"),
    _row("77", "CLI", "a bulk verb without a terminal and without --yes", "exit 2; nothing done"),
    _row(
        "78",
        "CLI",
        "server down, TLS mismatch, another service",
        "exit 5 with address and next step",
        _CLI + "test_who_does_not_answer_is_exit_5_with_the_address",
        "tests/integration/test_tls.py",
    ),
    _row(
        "79",
        "CLI",
        "a token the server does not know",
        "exit 4",
        _CLI + "test_a_token_no_one_knows_is_exit_4",
        waits=Waits.PROFILES,
    ),
    _row(
        "80",
        "CLI",
        "closed pipe; Ctrl-C; 20 columns; C locale",
        "a quiet end",
        _CLI + "test_narrow_poor_and_closed_terminals_are_no_reason_to_crash",
        "tests/integration/test_cli.py::test_a_closed_pipe_ends_it_quietly",
    ),
    _row(
        "81",
        "SDK",
        "used after close",
        "Closed",
        _UNIT + "test_sdk_client.py::test_a_closed_client_raises_an_error_and_sends_what_waits_first",
    ),
    _row(
        "82",
        "SDK",
        "payload that cannot be sent",
        "PayloadError with the path, before the network",
        _UNIT + "test_sdk_models.py::test_what_does_not_fit_is_refused_before_the_network_by_its_path",
    ),
    _row(
        "83",
        "SDK",
        "a topic this worker does not handle",
        "handed back, asked for no more",
        _UNIT + "test_sdk_worker.py::test_jobs_of_an_unknown_topic_are_returned_and_it_is_asked_for_no_more",
    ),
    _row(
        "84",
        "SDK",
        "two handlers, no callable, a type nobody can read",
        "an error at start-up",
        _SDK + "test_what_cannot_be_a_handler_is_refused_when_it_is_registered",
        _UNIT + "test_sdk_worker.py::test_a_worker_refuses_what_it_cannot_do",
    ),
    _row(
        "85",
        "SDK",
        "a handler that returns rubbish, or raises anything",
        "its job fails with the reason; the worker lives",
        _UNIT + "test_sdk_outcomes.py::test_whatever_else_is_raised_fails_the_attempt_and_nothing_more",
        _UNIT + "test_sdk_outcomes.py::test_a_result_that_cannot_be_encoded_fails_for_good",
        _SDK + "test_a_handler_that_does_its_worst_costs_its_own_job_only",
    ),
    _row(
        "86",
        "SDK",
        "a handler that never stops",
        "said once; the process ends at last",
        _UNIT + "test_sdk_slots.py::test_stuck_slots_are_said_once_beats_go_on_and_a_drain_ends_in_time",
        _UNIT + "test_sdk_slots.py::test_a_worker_process_ends_though_an_async_handler_never_does",
    ),
    _row(
        "87",
        "SDK",
        "fork; several loops; threads",
        "works, or an error at once",
        _UNIT + "test_sdk_fork.py::test_a_client_used_before_a_fork_is_refused_in_the_child_and_works_in_the_parent",
        _UNIT + "test_sdk_client_calls.py::test_one_client_serves_several_loops_and_threads",
    ),
    _row(
        "88",
        "SDK",
        "a server without the call, or with newer enums",
        "VersionMismatch with the versions; unknown values kept",
        _SDK + "test_a_server_of_another_release_is_named",
    ),
    _row(
        "89",
        "config",
        "unknown variable, bad unit, values out of range, a lease that beats cannot keep",
        "refuses to start, names the key",
        _CONFIG + "test_a_setting_that_cannot_be_used_is_named_and_nothing_starts",
    ),
    _row(
        "90",
        "config",
        "port in use; database away, too old, of another release",
        "one line, an exit code, the next step",
        _CONFIG + "test_a_port_in_use_is_one_line_and_exit_78",
        "tests/integration/test_cli.py::test_a_schema_of_a_newer_release_is_exit_78",
        "tests/integration/test_preflight.py::test_a_database_of_another_encoding_is_refused",
        _CONFIG + "test_a_database_that_was_never_migrated_is_exit_78_with_the_command",
    ),
    _row(
        "91",
        "config",
        "tokens too short; shared secrets of issuers; no login outside of --dev",
        "refuses to start, or starts closed",
        _CONFIG + "test_a_setting_that_cannot_be_used_is_named_and_nothing_starts",
        "tests/unit/test_jwt_issuers.py::test_a_wrong_field_is_refused_by_its_name",
        "tests/unit/test_access.py::test_without_any_credential_it_starts_closed_and_says_how_to_create_the_first_key",
    ),
]
