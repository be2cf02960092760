"""Rules of the dashboard without a browser: forms, addresses, rows, previews, masks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest

from headgate.domain.api_keys import OVERLAP_DEFAULT
from headgate.domain.batch_graph import BatchGraph, BatchMember, Edge
from headgate.domain.bulk import BulkOperation, Counted, JobLine, Preview, Progress, Verb
from headgate.domain.errors import NotFound
from headgate.domain.filter_parser import parse
from headgate.domain.identity import Identity, Scope
from headgate.domain.redaction import MASK, Redaction
from headgate.domain.schedules import Every, ScheduleSpec
from headgate.domain.states import EventKind, State
from headgate.domain.views import JobEvent
from headgate.sdk.ids import new_id_maker
from headgate.web.batch_layout import layout_of
from headgate.web.cookies import PLAIN_SESSION, SECURE_SESSION, Undo
from headgate.web.filters import percent
from headgate.web.forms import Form, utc_time
from headgate.web.guard import session_secret
from headgate.web.models.bodies import SHOWN_MAX_BYTES, body_of
from headgate.web.models.job_list import Query, rows_of, tabs_of
from headgate.web.models.job_page import _masked_event, like_payload
from headgate.web.models.operations import TYPE_ABOVE, OperationView, PreviewView
from headgate.web.pages import access
from headgate.web.pages.jobs import _answered
from headgate.web.pages.operations import _request
from headgate.web.routing import safe_path
from headgate.web.schedule_forms import spec_of
from headgate.web.visitor import Visitor

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


# --- forms and addresses ---------------------------------------------------------------------------------------------


def test_fields_of_a_form_that_are_empty_are_none() -> None:
    form = Form([("tag", "a"), ("tag", " "), ("since", "0"), ("at", "2026-07-01T12:00+02:00")])
    assert form.many("tag") == ["a"]
    assert form.moment("since") is None
    assert utc_time("2026-07-01T12:00+02:00", field="at") == NOON - timedelta(hours=2)
    assert utc_time("2026-07-01T12:00", field="at") == NOON


@pytest.mark.parametrize("path", ["/ui/login", "/ui/login?next=/ui", "/ui\\evil.example", "/ui/x\\y"])
def test_nobody_is_led_to_the_login_or_to_what_browsers_read_as_another_site(path: str) -> None:
    assert safe_path(path) == "/ui"


@pytest.mark.parametrize("action", ["https://evil.example/", "/v1/jobs", "//evil.example/ui/"])
def test_a_forged_message_undoes_nothing_outside_of_the_dashboard(action: str) -> None:
    assert Undo.of({"action": action, "values": {}}) is None
    assert Undo.of({"action": "/ui/topics/mail/resume", "values": {}}) is not None


def test_over_tls_only_the_cookie_that_no_other_host_can_set_is_a_session() -> None:
    def of(*, secure: bool, **cookies: str) -> str:
        return session_secret(SimpleNamespace(cookies=cookies, is_secure=secure))  # type: ignore[arg-type]

    assert of(secure=True, **{PLAIN_SESSION: "forged"}) == ""
    assert of(secure=False, **{PLAIN_SESSION: "s"}) == "s"
    assert of(secure=True, **{SECURE_SESSION: "s", PLAIN_SESSION: "forged"}) == "s"


def test_another_filter_begins_at_the_first_page() -> None:
    query = Query(filter="topic:mail", cursor="abc", limit=100)
    assert query.href(oldest=True) == "/ui/jobs?filter=topic%3Amail&order=oldest&limit=100"
    assert query.href(cursor="def").endswith("cursor=def")


# --- jobs ------------------------------------------------------------------------------------------------------------


def line(state: State, **more: Any) -> JobLine:
    known: dict[str, Any] = dict.fromkeys(JobLine.__dataclass_fields__)
    return JobLine(
        **known | {"id": new_id_maker().next_id(), "state": state, "created_at": NOON, "run_at": NOON, **more}
    )


def test_a_job_took_as_long_as_it_ran_and_none_that_waits_again_still_runs() -> None:
    later = NOON + timedelta(minutes=5)
    jobs = [
        line(State.RUNNING, claimed_at=NOON),
        line(State.RETRYING, claimed_at=NOON),
        line(State.DEAD, claimed_at=NOON, finished_at=NOON + timedelta(minutes=1)),
    ]
    took = [row.took for row in rows_of(jobs, Redaction(), now=later)]
    assert took == [timedelta(minutes=5), None, timedelta(minutes=1)]


@pytest.mark.parametrize(
    ("text", "current"),
    [("topic:mail", ["all"]), ("state:dead", ["dead"]), ("state:dead,cancelled", []), ("-state:dead", [])],
)
def test_a_tab_is_current_only_if_it_shows_what_the_filter_selects(text: str, current: list[str]) -> None:
    assert [tab.name for tab in tabs_of(parse(text), None) if tab.current] == current


def test_events_and_copies_of_a_job_show_no_secrets() -> None:
    known: dict[str, Any] = dict.fromkeys(JobEvent.__dataclass_fields__)
    event = JobEvent(**known | {"kind": EventKind.FAILED, "reason": "token=abc", "error_message": "password=abc"})
    shown = _masked_event(event, Redaction())
    assert (shown.reason, shown.error_message) == (f"token={MASK}", f"password={MASK}")
    assert like_payload(b'{"password": "abc"}', Redaction()) is None
    assert like_payload(b'{"n": 1}', Redaction()) == {"n": 1}


def test_a_large_body_is_shown_to_a_reader_who_asks_for_it() -> None:
    large = b'"' + b"x" * SHOWN_MAX_BYTES + b'"'
    assert [body_of(large, Redaction(), whole=whole).kind for whole in (False, True)] == ["large", "json"]


def test_the_error_of_a_single_job_is_the_answer_and_of_several_a_part_of_it() -> None:
    refused = SimpleNamespace(error=NotFound("job", "x"), changed=False)
    request = Mock(fields=Form([]))
    with pytest.raises(NotFound):
        _answered(request, [refused], "cancelled")  # type: ignore[list-item]
    _answered(request, [refused, SimpleNamespace(error=None, changed=True)], "cancelled")  # type: ignore[list-item]
    assert request.done.call_args.args[0].startswith("1 of 2 jobs cancelled. Not changed: ")
    assert request.done.call_args.kwargs["level"] == "info"


# --- operations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "typed"), [(TYPE_ABOVE, ""), (TYPE_ABOVE + 1, str(TYPE_ABOVE + 1))])
def test_the_number_of_many_jobs_is_typed_to_confirm(total: int, typed: str) -> None:
    preview = Preview(filter="", counted=Counted(by_state={State.DEAD: total}, exact=True), eligible=total, sample=[])
    assert PreviewView(verb=Verb.DISCARD, preview=preview).typed == typed


def test_how_far_an_operation_is_counts_all_that_it_is_done_with_if_the_whole_is_known() -> None:
    known: dict[str, Any] = dict.fromkeys(BulkOperation.__dataclass_fields__, 0)
    given = known | {"state": Progress.RUNNING, "expected": 10, "changed": 3, "skipped": 1, "errors": 1}
    exact, rough = (
        OperationView(operation=BulkOperation(**given | {"expected_exactly": exactly}), now=NOON)
        for exactly in (True, False)
    )
    assert (exact.handled, exact.share) == (5, 0.5)
    assert rough.share is None


def test_the_delay_of_a_form_is_that_of_a_redrive_alone() -> None:
    fields = [("filter", "topic:mail"), ("delay", "30s"), ("topic", "pay"), ("priority", "5")]
    delays = {verb: _request(Form([("verb", verb), *fields])).delay for verb in ("redrive", "move")}
    assert delays == {"redrive": timedelta(seconds=30), "move": timedelta(0)}


# --- schedules, batches ----------------------------------------------------------------------------------------------


def test_a_form_without_a_payload_keeps_the_one_that_is_not_json_and_an_anchor_counts() -> None:
    before = ScheduleSpec(topic="mail", timing=Every(interval=timedelta(hours=1)), payload=b"\xff", tags=("a",))
    fields = [("kind", "every"), ("every", "2h"), ("anchor", "2026-07-01T12:00"), ("topic", "mail")]
    spec = spec_of(Form(fields), before, Redaction())
    assert (spec.payload, spec.tags) == (b"\xff", ("a",))
    assert spec.timing == Every(interval=timedelta(hours=2), anchor=NOON)


def test_no_part_is_no_little_part() -> None:
    assert [percent(part, 10_000) for part in (0, 1, 50)] == ["0 %", "< 0.1 %", "0.5 %"]


def test_a_dependency_on_a_job_that_is_not_shown_is_not_drawn() -> None:
    shown, hidden = uuid4(), uuid4()
    batch: Any = SimpleNamespace(callback_id=None)
    for edge in (Edge(parent=shown, child=hidden, met=False), Edge(parent=hidden, child=shown, met=False)):
        members = [BatchMember(id=shown, topic="mail", state=State.PENDING)]
        assert layout_of(BatchGraph(batch=batch, members=members, edges=[edge])).lines == []


def test_a_visitor_is_named_by_the_most_it_may_do_and_changes_nothing_while_the_database_takes_no_writes() -> None:
    scopes = frozenset({Scope.READ, Scope.OPERATE, Scope.ADMIN})
    for held, role in ((scopes, "admin"), (scopes - {Scope.ADMIN}, "operator"), (frozenset({Scope.READ}), "viewer")):
        identity = Identity(tenant="acme", subject="ana", scopes=held, credential="c")
        assert Visitor(cookie="c", identity=identity).role == role
    visitor = Visitor(cookie="c", identity=Identity(tenant="acme", subject="ana", scopes=scopes, credential="c"))
    assert visitor.can("AdminService/Status")
    assert visitor.can("AdminService/Pause")
    visitor.read_only = True
    assert visitor.can("AdminService/Status")
    assert not visitor.can("AdminService/Pause")


@pytest.mark.parametrize(
    ("after", "sessions_after", "expected"),
    [
        ("", "", ["/ui/access?after=k9", "", "/ui/access?sessions_after=s9", ""]),
        ("k1", "", ["/ui/access?after=k9", "/ui/access", "/ui/access?after=k1&sessions_after=s9", ""]),
        (
            *("k1", "s1"),
            [
                *("/ui/access?after=k9&sessions_after=s1", "/ui/access?sessions_after=s1"),
                *("/ui/access?after=k1&sessions_after=s9", "/ui/access?after=k1"),
            ],
        ),
    ],
)
async def test_keys_and_sessions_have_pages_of_their_own(after: str, sessions_after: str, expected: list[str]) -> None:
    async def keys(_caller: object, **named: object) -> tuple[list[object], str]:
        assert named == {"revoked": False, "after": after, "limit": access.ROWS}
        return [], "k9"

    async def sessions(_caller: object, **named: object) -> tuple[list[object], str]:
        assert named == {"after": sessions_after, "limit": access.ROWS}
        return [], "s9"

    request = SimpleNamespace(
        caller="ana",
        cases=SimpleNamespace(keys=SimpleNamespace(page=keys), web_sessions=SimpleNamespace(page=sessions)),
        render=lambda *_, **shown: shown,
    )
    shown: Any = await access.access.fn(request, after=after, sessions_after=sessions_after)
    names = ("next_keys_url", "first_keys_url", "next_sessions_url", "first_sessions_url")
    assert [shown[name] for name in names] == expected


@pytest.mark.parametrize(
    ("overlap", "expected"), [("", OVERLAP_DEFAULT), ("0s", timedelta(0)), ("1h", timedelta(hours=1))]
)
async def test_a_key_is_rotated_and_revoked_with_the_overlap_and_the_reason_of_the_form(
    overlap: str, expected: timedelta
) -> None:
    asked: list[object] = []

    async def rotate(_caller: object, key_id: str, **named: object) -> tuple[object, str]:
        asked.append((key_id, named))
        return SimpleNamespace(name="n"), "secret"

    async def revoke(_caller: object, key_id: str, **named: object) -> object:
        asked.append((key_id, named))
        return SimpleNamespace(name="n")

    request = SimpleNamespace(
        caller="ana",
        fields=Form([("overlap", overlap), ("reason", "leaked")]),
        cases=SimpleNamespace(keys=SimpleNamespace(rotate=rotate, revoke=revoke)),
        render=lambda *_, **shown: shown,
        done=lambda text, **_: text,
    )
    await access.rotate_key.fn(request, "k1")
    await access.revoke_key.fn(request, "k1")
    assert asked == [("k1", {"overlap": expected, "reason": "leaked"}), ("k1", {"reason": "leaked"})]
