"""What the overview calls attention to, and what it says to do."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from headgate.domain.alerts import Level, alerts_of
from headgate.domain.durability import Durability
from headgate.domain.retention import RetentionRules, RetentionStatus
from headgate.domain.states import State
from headgate.domain.views import (
    FlowMinute,
    InstanceView,
    Pause,
    Status,
    Target,
    TargetKind,
    TopicStatus,
)

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
DURABLE = Durability(
    server_version="18.1",
    server_version_num=180_001,
    server_encoding="UTF8",
    fsync="on",
    full_page_writes="on",
    synchronous_commit="on",
    synchronous_commit_default="on",
    synchronous_standby_names="",
    in_recovery=False,
    read_only=False,
    data_checksums="on",
    max_connections=100,
    problems=(),
    own_problems=(),
    unfit=(),
    notes=(),
)
SERVER = InstanceView(name="a", version="1", started_at=NOON, seen_at=NOON, workers=1)
QUIET = Status(
    now=NOON,
    pauses=[],
    topics=[TopicStatus(topic="mail", paused=False, counts={State.PENDING: 3}, waiting_since=NOON)],
    instances=[SERVER],
    retention=RetentionStatus(rules=RetentionRules()),
)


def codes(status: Status = QUIET, **known: object) -> list[str]:
    return [one.code for one in alerts_of(status, **{"database": DURABLE, "workers": 1, **known})]


def with_topic(**changes: object) -> Status:
    return replace(QUIET, topics=[replace(QUIET.topics[0], **changes)])


def test_nothing_is_said_when_all_is_well() -> None:
    assert codes() == []


def test_a_database_that_is_away_or_can_lose_jobs_is_an_error() -> None:
    assert codes(database=None, database_error="connection refused") == ["database_away"]
    found = alerts_of(QUIET, database=replace(DURABLE, problems=("fsync is off",)))
    assert [(one.level, one.code) for one in found] == [(Level.ERROR, "not_durable")]
    assert "fsync is off" in found[0].advice
    assert codes(database=replace(DURABLE, read_only=True, unfit=("it takes no writes",))) == ["read_only"]


def test_servers_that_are_not_ready_stuck_or_mixed_are_named() -> None:
    assert codes(not_ready="the database is being migrated") == ["not_ready"]
    assert codes(replace(QUIET, instances=[replace(SERVER, stuck=2)])) == ["stuck"]
    assert codes(replace(QUIET, instances=[SERVER, replace(SERVER, version="2")])) == ["mixed_versions"]


def test_jobs_that_no_worker_takes_say_how_to_start_one() -> None:
    assert codes(with_topic(unhandled=True), workers=0) == ["no_workers"]
    assert codes(with_topic(unhandled=True), workers=2) == ["unhandled"]
    assert codes(with_topic(unhandled=True, paused=True), workers=0) == ["topics_paused"]


def test_a_topic_whose_jobs_wait_long_is_named_unless_it_is_paused() -> None:
    old = NOON - timedelta(minutes=11)
    (found,) = alerts_of(with_topic(waiting_since=old), database=DURABLE, workers=1)
    assert (found.code, found.subject, found.title) == ("waiting_long", "mail", "Jobs of mail wait for up to 11 min")
    assert codes(with_topic(waiting_since=old, paused=True)) == ["topics_paused"]
    assert codes(with_topic(waiting_since=NOON - timedelta(minutes=9))) == []


def test_jobs_that_die_and_late_schedules_are_warnings() -> None:
    flow = FlowMinute(minute=NOON, submitted=0, completed=0, retried=0, dead=1)
    assert codes(with_topic(flows=[flow])) == ["dying"]
    assert codes(schedule_lag=timedelta(minutes=2)) == ["schedules_late"]
    assert codes(schedule_lag=timedelta(seconds=30)) == []


def test_the_most_urgent_comes_first_and_many_topics_are_counted() -> None:
    pause = Pause(target=Target(kind=TargetKind.TENANT), paused=True, who="ana", reason="bank outage")
    topics = [replace(QUIET.topics[0], topic=f"t{number}", paused=True) for number in range(5)]
    found = alerts_of(replace(QUIET, pauses=[pause], topics=topics), database=None, workers=1)
    assert [one.level for one in found] == [Level.ERROR, Level.WARNING, Level.NOTICE]
    assert "ana" in found[1].title
    assert "bank outage" in found[1].advice
    assert found[2].title == "Paused: t0, t1, t2 and 2 more"
