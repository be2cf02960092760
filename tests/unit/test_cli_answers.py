"""What commands ask a client for, print and exit with, by a client in the hands of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from headgate.cli import batch, bulk, job_verbs, lists, main, retention, schedule, submit, workers
from headgate.cli import job as job_command
from headgate.cli.errors import exit_code
from headgate.cli.events import _parts
from headgate.cli.output import as_json, count_text, printable
from headgate.cli.status import lines as status_lines
from headgate.cli.values import headers, payload_lines
from headgate.domain.bulk import DeadGroups
from headgate.domain.errors import InvalidInput
from headgate.domain.limits import PAGE_MAX
from headgate.domain.retention import Removed
from headgate.sdk import JobInfo
from headgate.sdk.admin import InstanceInfo, JobChange, ScheduleInfo, Status
from headgate.sdk.admin.bulk import BulkOperation, BulkPreview
from headgate.sdk.batches import BatchInfo
from headgate.sdk.errors import ServerError
from headgate.sdk.ids import new_id_maker
from tests.unit.test_cli_job_report import failed, job
from tests.unit.test_cli_status import KEPT

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
IDS = [new_id_maker().next_id() for _ in range(3)]


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(full_id=AsyncMock(side_effect=lambda _kind, text: text))

    def with_client(_server: object, use: Callable[[Any], Awaitable[object]]) -> object:
        return asyncio.run(use(SimpleNamespace(admin=found)))  # type: ignore[arg-type]

    for module in (batch, bulk, job_verbs, lists, retention, schedule, workers):
        monkeypatch.setattr(module, "with_client", with_client)
    return found


# --- verbs -----------------------------------------------------------------------------------------------------------


def answered(admin: SimpleNamespace) -> None:
    changes = [
        JobChange(id=IDS[0], changed=True, state="cancelled"),
        JobChange(id=IDS[1], changed=False, state="running"),
        JobChange(id=IDS[2], changed=False, state="", code="not_found"),
    ]
    admin.jobs = SimpleNamespace(cancel=AsyncMock(return_value=changes))


def test_one_job_of_several_that_fails_is_the_exit_code(
    admin: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    answered(admin)
    assert main(["job", "cancel", *map(str, IDS)]) == 3
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f"{IDS[0]}  cancelled", f"{IDS[1]}  running  (unchanged)"]
    assert str(IDS[2]) in printed.err


def test_names_are_those_of_jobs_that_did_not_fail_and_json_has_all(
    admin: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    answered(admin)
    assert main(["job", "cancel", *map(str, IDS), "-o", "name"]) == 3
    assert capsys.readouterr().out.split() == [str(one) for one in IDS[:2]]
    assert main(["job", "cancel", *map(str, IDS), "-o", "json"]) == 3
    assert [one["code"] for one in json.loads(capsys.readouterr().out)] == ["", "", "not_found"]


# --- bulk ------------------------------------------------------------------------------------------------------------


def operation(**more: Any) -> BulkOperation:
    known: dict[str, Any] = dict.fromkeys(BulkOperation.__dataclass_fields__, 0)
    return BulkOperation(**known | {"id": IDS[0], "state": "running", "error": "", **more})


def previewed(admin: SimpleNamespace, total: int) -> None:
    preview = BulkPreview(filter="topic:pay", total=total, exact=True, eligible=total, by_state={}, sample=[])
    admin.bulk = SimpleNamespace(preview=AsyncMock(return_value=preview), start=AsyncMock(return_value=operation()))


def test_an_operation_on_no_jobs_is_not_started(admin: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    previewed(admin, 0)
    assert main(["bulk", "start", "cancel", "--filter", "topic:pay"]) == 0
    assert capsys.readouterr().out == "no jobs match topic:pay\n"
    admin.bulk.start.assert_not_awaited()


def test_an_operation_is_confirmed_and_has_all_its_options(admin: SimpleNamespace) -> None:
    previewed(admin, 5)
    command = ["bulk", "start", "redrive", "--filter", "topic:pay", "--per-second", "7", "--delay", "30s", "--detach"]
    assert main(command) == 2  # there is no terminal to ask
    admin.bulk.start.assert_not_awaited()
    assert main([*command, "--yes", "--reason", "fixed", "-o", "name"]) == 0
    given = admin.bulk.start.await_args.kwargs
    assert (given["per_second"], given["delay"].total_seconds(), given["reason"]) == (7, 30, "fixed")


@pytest.mark.parametrize(
    ("state", "matched", "share"), [("done", 1, "100%"), ("running", 1, "25%"), ("failed", 9, "100%")]
)
def test_an_operation_that_is_done_is_whole_whatever_was_expected(state: str, matched: int, share: str) -> None:
    assert share in bulk.line(operation(state=state, matched=matched, expected=4))


def test_an_operation_that_ends_with_an_error_says_which(
    admin: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    previewed(admin, 5)
    admin.bulk.wait = AsyncMock(return_value=operation(state="failed", error="the disk\nis full"))
    command = ["bulk", "start", "cancel", "--filter", "topic:pay", "--yes"]
    assert main(command) == 0
    assert capsys.readouterr().out == "last error: the disk is full\n"
    assert main([*command, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["error"] == "the disk\nis full"


def test_who_stops_watching_an_operation_is_told_that_it_continues(
    admin: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    previewed(admin, 5)
    admin.bulk.wait = AsyncMock(side_effect=KeyboardInterrupt)
    with pytest.raises(SystemExit) as ended:
        main(["bulk", "start", "cancel", "--filter", "topic:pay", "--yes"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == f"\noperation {IDS[0]} continues: headgate bulk watch {IDS[0]}\n"


def test_the_passes_of_a_removal_are_added_up(admin: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    passes = [Removed(jobs=2, days=1, other=3, more=True), Removed(jobs=1, days=2, other=4)]
    admin.retention = SimpleNamespace(run_pass=AsyncMock(side_effect=passes))
    assert main(["retention", "run"]) == 0
    assert capsys.readouterr().out == "removed 3 jobs one by one, 3 day partitions, 7 other rows\n"


# --- one job ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["completed", "dead", "cancelled"])
def test_watching_a_job_ends_with_it(
    state: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = SimpleNamespace(
        get=AsyncMock(side_effect=[job(id=IDS[0], state="retrying"), job(id=IDS[0], state=state)]),
        admin=SimpleNamespace(jobs=SimpleNamespace(events=AsyncMock(return_value=[]))),
    )
    monkeypatch.setattr(job_command, "POLL_SECONDS", 0)
    monkeypatch.setattr(job_command, "with_id", lambda _server, _kind, _given, use: asyncio.run(use(client, IDS[0])))
    assert main(["job", "get", "0190a3b2", "--watch", "-o", "json"]) == 0
    assert [json.loads(line)["state"] for line in capsys.readouterr().out.splitlines()] == ["retrying", state]


@pytest.mark.parametrize("output", ["table", "json", "ndjson", "yaml", "name"])
def test_a_submit_whose_wait_fails_shows_the_job_and_exits_with_the_error(
    output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    handle = SimpleNamespace(
        id=IDS[0],
        created=True,
        result=AsyncMock(side_effect=ServerError("too many calls", reported="rate_limited")),
        info=AsyncMock(return_value=job(state="pending")),
    )
    client = SimpleNamespace(submit=AsyncMock(return_value=handle))
    monkeypatch.setattr(submit, "with_client", lambda _server, use: asyncio.run(use(client)))
    assert main(["submit", "mail", "--wait", "1s", "-o", output]) == 5
    printed = capsys.readouterr()
    assert str(IDS[0]) in printed.out
    assert printed.err == "error: too many calls\n"
    assert client.submit.await_args.args == ("mail", b"{}")


# --- what is wrong is said before a server is called -----------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "dead redrive --yes",
        "dead discard --yes",
        "batch open --payload {}",
        "schedule next nightly --every 1h",
        "schedule next",
        "submit mail --on-conflict replace",
        "submit mail --debounce-max 5s",
    ],
)
def test_options_that_do_not_fit_together_are_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    assert capsys.readouterr().err.startswith("error: ")


# --- lists -----------------------------------------------------------------------------------------------------------


def test_a_list_reads_pages_until_it_has_as_many_as_were_asked_for(
    admin: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page can be empty although more follow."""
    pages = [([job(), job()], "a"), ([], "b"), ([job(), job(), job()], "c")]
    page = AsyncMock(side_effect=[SimpleNamespace(jobs=jobs, cursor=cursor) for jobs, cursor in pages])
    admin.jobs_matching = lambda *_, **__: SimpleNamespace(page=page)
    assert main(["job", "list", "--limit", "5", "-o", "name"]) == 0
    assert len(capsys.readouterr().out.split()) == 5
    assert [call.kwargs for call in page.await_args_list] == [
        {"limit": 5, "cursor": ""},
        {"limit": 3, "cursor": "a"},
        {"limit": 3, "cursor": "b"},
    ]


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["dead", "list"], "dead.groups"),
        (["bulk", "list"], "bulk.list"),
        (["batch", "list"], "batches"),
    ],
)
def test_a_list_that_is_filtered_reads_more_than_it_shows(
    words: list[str], where: str, admin: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """What matches may be far behind."""
    read = AsyncMock(return_value=DeadGroups() if where == "dead.groups" else [])
    noun, _, name = where.partition(".")
    setattr(admin, noun, SimpleNamespace(**{name: read}) if name else read)
    for part, limit in (((), 2), (("--filter", "x"), PAGE_MAX)):
        assert main([*words, *part, "--limit", "2"]) == 0
        assert read.await_args is not None
        assert read.await_args.kwargs["limit"] == limit


def paged(admin: SimpleNamespace, *jobs: JobInfo) -> None:
    page = AsyncMock(return_value=SimpleNamespace(jobs=list(jobs), cursor=""))
    admin.jobs_matching = lambda *_, **__: SimpleNamespace(page=page)


def test_a_wide_list_of_jobs_has_more_columns(admin: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    paged(admin, job(tags=("vip", "eu")))
    assert main(["job", "list"]) == 0
    narrow = capsys.readouterr().out
    assert main(["job", "list", "-o", "wide"]) == 0
    wide = capsys.readouterr().out
    assert ("TAGS" in narrow, "TAGS" in wide, "vip, eu" in wide) == (False, True, True)


@pytest.mark.parametrize("output", ["json", "ndjson", "yaml"])
def test_a_list_of_jobs_for_programs_has_no_payloads(
    output: str, admin: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    paged(admin, job())
    assert main(["job", "list", "-o", output]) == 0
    printed = capsys.readouterr().out
    assert "last_error" in printed
    assert "payload" not in printed
    assert "raw_result" not in printed


def test_a_long_history_says_how_to_read_on(
    admin: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_verbs, "JOB_EVENTS_MAX", 2)
    events = [replace(failed(number, ""), no=number) for number in (7, 8)]
    admin.jobs = SimpleNamespace(events=AsyncMock(return_value=events))
    assert main(["job", "events", "0190a3b2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "the newest 2 are shown; older ones: --before 7"
    admin.jobs.events.return_value = events[1:]
    assert main(["job", "events", "0190a3b2"]) == 0
    assert "--before" not in capsys.readouterr().out


def test_a_worker_that_is_not_connected_is_not_found(admin: SimpleNamespace) -> None:
    admin.workers = SimpleNamespace(list=AsyncMock(return_value=[]))
    assert main(["workers", "get", "w"]) == 3


@pytest.mark.parametrize(
    ("sealed", "expired", "state"),
    [(False, False, "open"), (True, False, "sealed"), (True, True, "expired"), (False, True, "expired")],
)
def test_a_batch_that_was_closed_by_its_expiry_is_expired(sealed: bool, expired: bool, state: str) -> None:
    known: dict[str, Any] = {"id": IDS[0], "name": "", "needs": "ended", "created_at": NOON, "expires_at": NOON}
    assert batch.state_of(BatchInfo(sealed=sealed, expired=expired, total=0, counted=0, **known)) == state


def test_stuck_rows_of_any_server_are_in_the_status() -> None:
    instances = [
        InstanceInfo(name=f"i{stuck}", version="1", started_at=None, seen_at=None, workers=0, stuck=stuck)
        for stuck in (0, 3)
    ]
    status = Status(now=NOON, pauses=(), topics=(), instances=instances, retention=KEPT)
    assert any(line.startswith("STUCK 3 ") for line in status_lines(status))


# --- schedules -------------------------------------------------------------------------------------------------------


def schedule_info(**more: Any) -> ScheduleInfo:
    known: dict[str, Any] = dict.fromkeys(ScheduleInfo.__dataclass_fields__)
    return ScheduleInfo(**known | {"name": "nightly", "payload": b"", "headers": {}, **more})


@pytest.mark.parametrize(("given", "version"), [([], None), (["--version", "0"], 0), (["--version", "3"], 3)])
def test_a_schedule_is_put_at_the_version_that_was_given(
    given: list[str], version: int | None, admin: SimpleNamespace
) -> None:
    admin.schedules = SimpleNamespace(put=AsyncMock(return_value=schedule_info()))
    assert main(["schedule", "put", "nightly", "mail", "--every", "1h", "--catch-up", "7", *given, "-o", "name"]) == 0
    sent = admin.schedules.put.await_args.kwargs
    assert (sent["version"], sent["catch_up"]) == (version, 7)


def test_a_paused_schedule_has_no_next_occurrence_in_a_list() -> None:
    assert schedule.COLUMNS["NEXT"](schedule_info(next_at=NOON, paused=True)) is None
    assert schedule.COLUMNS["NEXT"](schedule_info(next_at=NOON, paused=False)) == NOON


# --- values ----------------------------------------------------------------------------------------------------------


def test_lists_of_names_may_have_spaces_and_empty_parts() -> None:
    assert _parts(" a, b ,,c") == ["a", "b", "c"]


def test_a_header_is_given_once() -> None:
    with pytest.raises(InvalidInput, match="twice"):
        headers(["a=1", "a=2"], field="--header")


def test_a_line_that_is_not_json_is_named_as_editors_number_it(tmp_path: Any) -> None:
    path = tmp_path / "jobs"
    path.write_bytes(b'{}\n\n{"a": 1}\nno\n')
    with pytest.raises(InvalidInput, match="line 4 is not JSON"):
        payload_lines(str(path))
    assert len(payload_lines(str(path), raw=True)) == 3


def test_a_count_that_stopped_at_a_bound_says_so() -> None:
    assert [count_text(10_001, exact=exact) for exact in (True, False)] == ["10,001", "more than 10,000"]


def test_line_ends_of_windows_are_line_ends() -> None:
    assert printable("a\r\nb\rc\x1b") == "a\nb\\x0dc\\x1b"


def test_a_time_for_programs_is_exact() -> None:
    """`resume --since` takes the time of a pause, and a later pause may have the same second."""
    assert as_json({"since": NOON.replace(microsecond=7)}) == '{"since": "2026-07-01T12:00:00.000007Z"}'


@pytest.mark.parametrize("reported", ["rate_limited", "overloaded", "shutting_down", "store_busy"])
def test_what_may_succeed_later_has_an_exit_code_of_its_own(reported: str) -> None:
    assert exit_code(ServerError("no", reported=reported)) == 5
