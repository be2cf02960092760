"""`headgate status`: throughput, and topics that no worker asks for."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from headgate.cli.status import lines
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


def test_throughput_is_that_of_the_last_minutes_of_each_topic_and_of_all() -> None:
    flows = FlowMinute(minute=BEFORE, submitted=900, completed=450, failed=9)
    printed = "\n".join(lines(status(MINUTE + timedelta(seconds=30), flows)))
    assert "IN/s  DONE/s  FAILED/s" in printed
    assert "throughput: submitted 10.0/s, completed 5.0/s, failed attempts 0.1/s" in printed


def waiting(*topics: TopicStatus, handled: tuple[str, ...] = ()) -> Status:
    return Status(now=MINUTE, pauses=(), topics=topics, instances=(), retention=KEPT, handled=handled)


def unhandled(topic: str, **counts: int) -> TopicStatus:
    return TopicStatus(topic=topic, paused=False, counts={"pending": 1, **counts}, unhandled=True)


@pytest.mark.parametrize("state", ["completed", "running", "retrying", "dead"])
def test_a_topic_whose_jobs_ran_before_is_not_called_misspelt(state: str) -> None:
    assert waiting(unhandled("mails"), handled=("mail",)).unhandled == {"mails": "mail"}
    assert waiting(unhandled("mails", **{state: 1}), handled=("mail",)).unhandled == {"mails": ""}
    declared = TopicStatus(topic="mail", paused=False, declared=True)
    assert waiting(unhandled("mails"), declared).unhandled == {"mails": "mail"}, "its worker is not connected"
    assert waiting(replace(unhandled("mails"), declared=True), handled=("mail",)).unhandled == {"mails": ""}
    has_run = TopicStatus(topic="mail", paused=False, counts={state: 1})
    assert waiting(unhandled("mails"), has_run).unhandled == {"mails": "mail"}


def test_without_any_worker_all_topics_are_one_line() -> None:
    topics = [unhandled(f"topic-{number}") for number in range(9)]
    (line,) = unhandled_lines(waiting(*topics))
    assert line.startswith('no worker is connected; jobs of 9 topics wait: "topic-0", ')
    assert line.endswith(" and 4 more")
    assert len(unhandled_lines(waiting(*topics, handled=("other",)))) == 9
