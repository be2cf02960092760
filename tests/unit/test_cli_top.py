"""`headgate top` without a terminal: places, commands, and the lines around the table."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from headgate.cli.dev import profile_note
from headgate.cli.http_port import http_lines
from headgate.cli.top import pages, reading, texts
from headgate.cli.top.actions import action_of
from headgate.cli.top.places import LISTS, Place, View, command_of, filtered, jobs_of
from headgate.cli.top.reading import Completions, Reader, _bounded_log
from headgate.domain.bulk import DeadGroup
from headgate.domain.errors import HeadgateError, InvalidInput, NotFound, Refused, StoreUnavailable
from headgate.domain.filter_parser import parse
from headgate.domain.filters import Field, Glob, InvalidFilter
from headgate.domain.ids import JobId
from headgate.domain.redaction import Redaction
from headgate.domain.topic_figures import Rates
from headgate.ops.profiles import Profile, Profiles, profiles_file, write_profiles
from headgate.sdk.admin.job_logs import LogLine
from headgate.sdk.admin.jobs import JobChange

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
TOPICS = Place(view=View.TOPICS)


def status(**fields: Any) -> Any:
    return SimpleNamespace(
        **{"now": NOON, "topics": (), "instances": (), "paused": (), "tenant": "shop", "rates": {}, "read_only": False}
        | fields
    )


def topic(name: str, *, waits: float | None = None, paused: bool = False, **counts: int) -> Any:
    since = None if waits is None else NOON - timedelta(seconds=waits)
    return SimpleNamespace(topic=name, paused=paused, waiting_since=since, counts=counts, unhandled=False)


def test_a_sparkline_rises_with_its_values_and_has_a_form_for_plain_terminals() -> None:
    assert texts.sparkline([]) == ""
    assert texts.sparkline([0, 0]) == "▁▁"
    assert texts.sparkline([0, 1, 2, 4]) == "▁▃▅█"
    assert texts.sparkline([0, 4], blocks=texts.PLAIN_BLOCKS) == "_#"
    assert texts.bar(0.5, width=8) == "████░░░░"
    assert texts.bar(7, width=4, plain=True) == "####"


def test_lag_is_the_longest_wait_of_what_may_be_dispatched() -> None:
    found = status(topics=(topic("a", waits=2), topic("b", waits=3600, paused=True), topic("c")))
    assert texts.lag(found) == timedelta(seconds=2)
    assert texts.lag(status()) == timedelta(0)


def test_the_header_says_how_long_a_server_has_been_away() -> None:
    heading = texts.Heading(
        server="a:1",
        interval=timedelta(seconds=2),
        read_only=True,
        status=status(instances=(1, 2)),
        away=texts.Away(since=10.0, reason="a:1 does not answer"),
    )
    assert (
        texts.header(heading, now=15.0).plain
        == " headgate top · shop @ a:1 · a:1 does not answer, for 5.0s; trying again · read-only · every 2s · ? help "
    )


def test_the_header_says_that_the_database_takes_no_writes() -> None:
    heading = texts.Heading(
        server="a:1", interval=timedelta(seconds=2), read_only=False, status=status(instances=(1,), read_only=True)
    )
    assert "· db read-only ·" in texts.header(heading, now=15.0).plain
    assert "· db ok ·" in texts.header(replace(heading, status=status(instances=(1,))), now=15.0).plain


def test_states_are_summed_over_topics() -> None:
    found = status(
        topics=(topic("a", pending=1_000, dead=1), topic("b", pending=754)),
        rates={"a": Rates(completed=39.0), "b": Rates(completed=0.94)},
    )
    line = texts.counts(found, [1.0, 2.0])
    assert line.plain.startswith(
        " PENDING 1,754   RUNNING 0   RETRYING 0   SCHEDULED 0   BLOCKED 0   DEAD 1   DONE/s 39.9 "
    )


def test_what_fails_is_the_group_with_the_latest_failure() -> None:
    def group(title: str, count: int, ago: float) -> DeadGroup:
        at = NOON - timedelta(seconds=ago)
        return DeadGroup(
            topic="mail", group="g", title=title, count=count, first_at=at, last_at=at, sample_id=None, sample_error=""
        )

    line = texts.failing_now([group("often\x1b[2J", 90, 600), group("just now", 2, 4)], now=NOON).plain
    assert line == " FAILING NOW mail  just now  2×  last 4.0s ago   and 1 more"
    assert texts.failing_now([], now=NOON).plain == " nothing fails"


def test_a_word_alone_is_a_part_of_the_name() -> None:
    assert filtered(View.JOBS, "mail").filter == "topic:*mail*"
    assert filtered(View.JOBS, "").filter == ""
    assert filtered(View.TOPICS, " mail ").filter == "mail"
    with pytest.raises(InvalidFilter):
        filtered(View.OPERATIONS, "state:dead")


@pytest.mark.parametrize("name", ["mail", "a b", 'quo"te', "st*r", "back\\slash", "ünï"])
def test_the_jobs_of_anything_are_found_by_its_very_name(name: str) -> None:
    (term,) = parse(jobs_of(Field.TOPIC, name).filter).terms
    assert [value.parts for value in term.values if isinstance(value, Glob)] == [(name,)]


def test_commands_go_to_places_and_a_mistake_gets_the_nearest_word() -> None:
    assert command_of("jobs state:dead", here=TOPICS).place == Place(view=View.JOBS, filter="state:dead")
    assert command_of("op", here=TOPICS).place == Place(view=View.OPERATIONS)
    assert command_of("filter mail", here=TOPICS).place == Place(view=View.TOPICS, filter="mail")
    assert command_of("interval 5s", here=TOPICS).argument == "5s"
    assert command_of("q", here=TOPICS).word == "quit"
    with pytest.raises(InvalidInput, match='did you mean "schedules"'):
        command_of("shedules", here=TOPICS)


def test_every_place_has_keys_and_each_key_that_is_named_does_something() -> None:
    item = SimpleNamespace(
        topic="t", id="i", state="dead", worker="w", quiet=False, name="n", paused=False, count=1, title="e", group="g"
    )
    for view in View:
        named = {part[0] for part in texts.KEYS[view].split("   ") if part[:2] in ("r ", "c ", "p ", "s ")}
        does = {key for key in "rcps" if action_of(key, Place(view=view), item, status()) is not None}
        assert named == does, view
    assert len(LISTS) == 6


def test_the_log_of_a_job_masks_logger_names_and_counts_lines_rather_than_rows() -> None:
    lines = [
        LogLine(at=NOON, attempt=1, level="info", logger="app.token=abc", text="pin", left_out=7, epoch=1, seq=seq)
        for seq in (8, 16)
    ]
    page = _bounded_log(pages.log_lines(lines, mask=Redaction().masked_text), count=len(lines), more=True)
    assert len(page.rows) == 4  # two of them say that lines were left out
    assert page.note == "the newest 2 lines are shown"
    shown = [" ".join(map(str, row.cells)) for row in page.rows]
    assert "app.token=•••" in shown[1]
    assert not any("abc" in row for row in shown)


def test_a_server_prints_the_address_of_its_dashboard() -> None:
    assert http_lines(host="::1", port=7071, tls=True, dashboard=True) == [
        "REST API on https://[::1]:7071",
        "dashboard on https://[::1]:7071",
    ]
    assert http_lines(host="::1", port=7071, tls=True, dashboard=False) == ["REST API on https://[::1]:7071"]


def test_a_developer_is_told_that_a_profile_leads_commands_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("HEADGATE_URL", raising=False)
    monkeypatch.delenv("HEADGATE_PROFILE", raising=False)
    assert profile_note("127.0.0.1:7070") == []
    file = profiles_file({"XDG_CONFIG_HOME": str(tmp_path)})
    write_profiles(file, Profiles().saved("prod", Profile(url="queue.example:7070")))
    (line,) = profile_note("127.0.0.1:7070")
    assert line.startswith("  profile    prod is in use, so commands call queue.example:7070; for this server: ")
    assert line.endswith(": export HEADGATE_URL=127.0.0.1:7070")
    monkeypatch.setenv("HEADGATE_URL", "127.0.0.1:7070")
    assert profile_note("127.0.0.1:7070") == []


# --- what is read


GROUP = DeadGroup(
    topic="mail",
    group="0a",
    title="no user with password=hunter2",
    count=3,
    first_at=NOON - timedelta(hours=9),
    last_at=NOON - timedelta(minutes=14),
    sample_id=UUID(int=1),
    sample_error="no user with password=hunter2",
)


class Admin:
    """Answers what the screen reads."""

    def __init__(self, *groups: DeadGroup, exact: bool = True) -> None:
        self.groups, self.exact, self.asked = list(groups), exact, 0
        self.dead = SimpleNamespace(groups=self.dead_groups)
        self.flow = SimpleNamespace(minute=NOON, completed=0, retried=1, dead=0)

    async def status(self) -> Any:
        topics = (SimpleNamespace(topic="mail", flows=(self.flow,)),)
        return status(topics=topics, rates={"mail": Rates()})

    async def failing(self, *, limit: int) -> Any:
        self.asked += 1
        return SimpleNamespace(groups=self.groups[:limit])

    async def dead_groups(self, *, limit: int) -> Any:
        return SimpleNamespace(groups=self.groups[:limit], exact=self.exact)


def reader(admin: Admin) -> Reader:
    return Reader(cast("Any", SimpleNamespace(admin=admin)), Redaction())


async def test_what_failed_within_a_quarter_of_an_hour_fails_now_and_its_secrets_are_masked() -> None:
    old = replace(GROUP, topic="old", last_at=NOON - timedelta(minutes=15))
    admin = Admin(GROUP, old)
    one = reader(admin)
    failing = (await one.read(Place(view=View.DEAD))).failing
    assert [group.topic for group in failing] == ["mail"]
    assert "hunter2" not in str(failing)
    await one.read(Place(view=View.DEAD))
    assert admin.asked == 1, "not with every read"


async def test_what_fails_no_more_is_no_longer_shown_as_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin(GROUP)
    one = reader(admin)
    assert len((await one.read(Place(view=View.DEAD))).failing) == 1
    monkeypatch.setattr(reading, "FAILING_SECONDS", 0.0)
    admin.flow.retried, admin.groups = 0, []
    assert (await one.read(Place(view=View.DEAD))).failing == []


@pytest.mark.parametrize(("part", "found"), [("MAI", 1), ("*Mail*", 1), ("sms", 0)])
async def test_a_part_of_a_name_is_found_in_upper_and_lower_case(part: str, found: int) -> None:
    page = (await reader(Admin(GROUP)).read(Place(view=View.DEAD, filter=part))).page
    assert len(page.rows) == found


@pytest.mark.parametrize("exact", [True, False])
async def test_dead_letters_are_shown_without_secrets_and_with_a_note_if_some_were_not_read(*, exact: bool) -> None:
    page = (await reader(Admin(GROUP, exact=exact)).read(Place(view=View.DEAD))).page
    assert len(page.rows) == 1
    assert "hunter2" not in " ".join(cell.plain for cell in page.rows[0].cells)
    assert bool(page.note) is not exact


def test_completed_jobs_are_counted_between_two_reads_of_the_servers_clock() -> None:
    def read(seconds: float, **minutes: int) -> Any:
        flows = [
            SimpleNamespace(minute=NOON + timedelta(minutes=int(name[1:])), completed=n) for name, n in minutes.items()
        ]
        now = NOON + timedelta(seconds=seconds)
        return status(now=now, topics=(SimpleNamespace(flows=flows),), rates={"mail": Rates(completed=7.5)})

    done = Completions()
    assert done.since_previous(read(0, m0=100)) == 7.5, "an average, until there are two"
    assert done.since_previous(read(2, m0=110)) == 5
    assert done.since_previous(read(2, m0=110)) == 7.5, "the same moment"
    assert done.since_previous(read(4, m1=6)) == 3, "a minute that is no longer reported is not negative"


class Refusing(Admin):
    """Answers the status, and refuses the rest."""

    def __init__(self, error: HeadgateError) -> None:
        super().__init__()
        self._error = error
        self.schedules = SimpleNamespace(get=self.refuse)
        self.flow.retried = 0

    async def refuse(self, *_: object) -> None:
        raise self._error


async def test_what_does_not_exist_is_a_note_and_an_absent_server_is_an_error() -> None:
    place = Place(view=View.SCHEDULE, subject="nightly")
    found = await reader(Refusing(NotFound("schedule", "nightly"))).read(place)
    assert "nightly" in found.page.note
    with pytest.raises(StoreUnavailable):
        await reader(Refusing(StoreUnavailable("away"))).read(place)


# --- actions


async def ran(
    key: str, view: View, item: Any, **of_status: Any
) -> tuple[str, list[tuple[str, tuple[object, ...], dict[str, object]]], str]:
    """The question of an action, the calls that it makes, and what it says."""
    calls: list[tuple[str, tuple[object, ...], dict[str, object]]] = []

    def method(name: str) -> Any:
        async def call(*args: object, **options: object) -> Any:
            calls.append((name, args, options))
            change = JobChange(
                id=JobId(UUID(int=1)), changed=False, state="completed", code="wrong_state", message="it ended"
            )
            return [change] if name.startswith("jobs") else SimpleNamespace(id=UUID(int=2), state="cancelled")

        return call

    admin = SimpleNamespace(
        pause=method("pause"),
        resume=method("resume"),
        **{
            noun: SimpleNamespace(**{verb: method(f"{noun}.{verb}") for verb in verbs})
            for noun, verbs in {
                "jobs": ("redrive", "cancel"),
                "workers": ("quiet", "resume", "stop"),
                "schedules": ("pause", "resume", "trigger"),
                "dead": ("redrive",),
                "bulk": ("cancel",),
            }.items()
        },
    )
    action = action_of(key, Place(view=view), item, status(**of_status))
    assert action is not None
    said = await action.run(cast("Any", SimpleNamespace(admin=admin)), "because")
    return action.question, calls, said


@pytest.mark.parametrize(
    ("key", "view", "item", "call"),
    [
        ("p", View.TOPICS, SimpleNamespace(topic="mail"), ("pause", (), {"topic": "mail"})),
        ("p", View.TOPICS, SimpleNamespace(topic="halted"), ("resume", (), {"topic": "halted"})),
        ("p", View.WORKERS, SimpleNamespace(worker="w", quiet=False), ("workers.quiet", ("w",), {})),
        ("p", View.WORKERS, SimpleNamespace(worker="w", quiet=True), ("workers.resume", ("w",), {})),
        ("s", View.WORKERS, SimpleNamespace(worker="w", quiet=True), ("workers.stop", ("w",), {})),
        ("p", View.SCHEDULES, SimpleNamespace(name="n", paused=False), ("schedules.pause", ("n",), {})),
        ("p", View.SCHEDULE, SimpleNamespace(name="n", paused=True), ("schedules.resume", ("n",), {})),
        ("r", View.SCHEDULES, SimpleNamespace(name="n", topic="t"), ("schedules.trigger", ("n",), {})),
        ("r", View.DEAD, GROUP, ("dead.redrive", ("mail",), {"group": "0a"})),
        ("c", View.OPERATIONS, SimpleNamespace(id=UUID(int=2)), ("bulk.cancel", (UUID(int=2),), {})),
    ],
)
async def test_a_key_does_one_thing_to_what_is_selected_with_the_reason(
    key: str, view: View, item: Any, call: tuple[str, tuple[object, ...], dict[str, object]]
) -> None:
    _, calls, _ = await ran(key, view, item, paused=(SimpleNamespace(target="topic halted"),))
    name, args, options = call
    assert calls == [(name, args, {**options, "reason": "because"})]


@pytest.mark.parametrize("key", ["r", "c"])
async def test_a_verb_that_a_job_refuses_is_an_error(key: str) -> None:
    job = SimpleNamespace(id=JobId(UUID(int=1)), topic="mail", state="running")
    with pytest.raises(Refused, match="it ended"):
        await ran(key, View.JOBS, job)
