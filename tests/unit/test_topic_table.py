"""The table of topics: rates, shares, pauses and warnings from what a status has."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from headgate.control.topic_table import TopicWarning, rows_of
from headgate.domain.retention import RetentionRules, RetentionStatus
from headgate.domain.states import State
from headgate.domain.views import FlowMinute, Pause, Status, Target, TargetKind, TopicStatus

NOW = datetime(2026, 11, 16, 12, 0, 30, tzinfo=UTC)


def status_of(*topics: TopicStatus, pauses: tuple[Pause, ...] = ()) -> Status:
    return Status(
        now=NOW, pauses=pauses, topics=topics, instances=(), retention=RetentionStatus(rules=RetentionRules())
    )


def topic(**more: Any) -> TopicStatus:
    given: dict[str, Any] = {"topic": "mail", "paused": False, "counts": {State.PENDING: 5, State.RUNNING: 2}}
    return TopicStatus(**{**given, **more})


def test_rates_are_of_the_time_since_the_previous_minute_began() -> None:
    before = FlowMinute(minute=NOW - timedelta(seconds=90), submitted=60, completed=50, retried=10, failed=10)
    current = FlowMinute(minute=NOW - timedelta(seconds=30), submitted=30, completed=25, retried=10, failed=15, dead=5)
    (row,) = rows_of(status_of(topic(flows=(before, current))))
    assert (row.rates.submitted, row.rates.completed) == (90 / 90, 75 / 90)
    assert row.rates.failed_share == 25 / 100
    assert (row.queued, row.running) == (5, 2)


def test_a_topic_without_finished_attempts_has_no_failed_share() -> None:
    (row,) = rows_of(status_of(topic()))
    assert row.rates.failed_share is None


def test_a_topic_shows_its_own_pause_before_one_that_reaches_further() -> None:
    own = Pause(target=Target(kind=TargetKind.TOPIC, topic="mail"), paused=True, who="ana")
    all_of_it = Pause(target=Target(kind=TargetKind.TENANT), paused=True, who="bo")
    mail, sms = rows_of(status_of(topic(), topic(topic="sms"), pauses=(all_of_it, own)))
    assert (mail.pause, sms.pause) == (own, all_of_it)
    everything = Pause(target=Target(kind=TargetKind.EVERYTHING), paused=True)
    ended = Pause(target=Target(kind=TargetKind.TOPIC, topic="mail"), paused=False)
    status = status_of(pauses=(all_of_it, ended, everything))
    assert status.pauses_by_topic(["mail"]) == {"mail": everything}, "the one that reaches furthest"
    assert status.wide_pauses == [everything, all_of_it]
    assert status_of().pauses_by_topic(["mail"]) == {}


def test_jobs_that_no_worker_asks_for_are_a_warning() -> None:
    (row,) = rows_of(status_of(topic(unhandled=True)))
    assert row.warnings == [TopicWarning.UNHANDLED]


def test_a_job_that_waits_for_long_is_a_warning_unless_the_topic_is_paused() -> None:
    late = topic(waiting_since=NOW - timedelta(minutes=11))
    assert rows_of(status_of(late))[0].warnings == [TopicWarning.LATE]
    pause = Pause(target=Target(kind=TargetKind.TOPIC, topic="mail"), paused=True)
    assert rows_of(status_of(late, pauses=(pause,)))[0].warnings == []


def test_a_topic_at_its_limit_and_with_a_full_backlog_says_so() -> None:
    (row,) = rows_of(status_of(topic(waiting_since=NOW, max_running=2, max_backlog=5)))
    assert row.warnings == [TopicWarning.AT_LIMIT, TopicWarning.NEARLY_FULL]
