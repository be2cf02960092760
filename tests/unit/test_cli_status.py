"""Throughput on `headgate status`: the average at first, then what happened between two screens."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from headgate.cli.status import Throughput
from headgate.cli.unhandled import unhandled_lines
from headgate.domain.retention import RetentionRules, RetentionStatus
from headgate.sdk.admin import FlowMinute, Status, TopicStatus

MINUTE = datetime(2026, 11, 16, 12, 4, tzinfo=UTC)
BEFORE = MINUTE - timedelta(minutes=1)
DAY = timedelta(days=1)
KEPT = RetentionStatus(
    rules=RetentionRules(completed=DAY, dead=DAY, cancelled=DAY, audit=DAY),
    oldest_day=date(2026, 11, 1),
    days_waiting=0,
    oldest_waiting=None,
)


def status(now: datetime, *flows: FlowMinute) -> Status:
    topic = TopicStatus(topic="mail", paused=False, flows=flows)
    return Status(now=now, pauses=(), topics=(topic,), instances=(), retention=KEPT)


def flow(minute: datetime, submitted: int, completed: int, retried: int = 0, dead: int = 0) -> FlowMinute:
    return FlowMinute(minute=minute, submitted=submitted, completed=completed, retried=retried, dead=dead)


def test_the_first_screen_shows_the_average_since_the_previous_minute_began() -> None:
    at = MINUTE + timedelta(seconds=30)
    rates = Throughput().rates(status(at, flow(BEFORE, 600, 300), flow(MINUTE, 300, 150, retried=90)))["mail"]
    assert rates == pytest.approx({"submitted": 10.0, "completed": 5.0, "retried": 1.0, "dead": 0.0})


def test_the_next_screen_shows_what_happened_since_also_across_minutes() -> None:
    throughput = Throughput()
    throughput.rates(status(MINUTE + timedelta(seconds=59), flow(MINUTE, 100, 50)))
    later = MINUTE + timedelta(seconds=61)
    rates = throughput.rates(status(later, flow(MINUTE, 110, 50, dead=2), flow(MINUTE + timedelta(minutes=1), 10, 4)))[
        "mail"
    ]
    assert rates == pytest.approx({"submitted": 10.0, "completed": 2.0, "retried": 0.0, "dead": 1.0})


def test_a_minute_that_left_the_window_is_no_negative_rate() -> None:
    throughput = Throughput()
    throughput.rates(status(MINUTE + timedelta(seconds=59), flow(BEFORE, 500, 500), flow(MINUTE, 5, 5)))
    rates = throughput.rates(status(MINUTE + timedelta(seconds=61), flow(MINUTE, 5, 5)))["mail"]
    assert set(rates.values()) == {0.0}


def waiting(*topics: TopicStatus, handled: tuple[str, ...] = ()) -> Status:
    return Status(now=MINUTE, pauses=(), topics=topics, instances=(), retention=KEPT, handled=handled)


def unhandled(topic: str, **counts: int) -> TopicStatus:
    return TopicStatus(topic=topic, paused=False, counts={"pending": 1, **counts}, unhandled=True)


@pytest.mark.parametrize("state", ["completed", "running", "retrying", "dead"])
def test_a_topic_whose_jobs_ran_before_is_not_called_misspelt(state: str) -> None:
    assert waiting(unhandled("mails"), handled=("mail",)).unhandled == {"mails": "mail"}
    assert waiting(unhandled("mails", **{state: 1}), handled=("mail",)).unhandled == {"mails": ""}


def test_without_any_worker_all_topics_are_one_line() -> None:
    topics = [unhandled(f"topic-{number}") for number in range(9)]
    (line,) = unhandled_lines(waiting(*topics))
    assert line.startswith('no worker is connected; jobs of 9 topics wait: "topic-0", ')
    assert line.endswith(" and 4 more")
    assert len(unhandled_lines(waiting(*topics, handled=("other",)))) == 9
