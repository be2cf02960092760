"""The figures of a topic: one definition for pages, commands and alerts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from headgate.domain.topic_figures import WAITING_LONG, Rates, longest_wait, rates_of, wait_of, waits_long
from headgate.domain.views import FlowMinute

MINUTE = datetime(2026, 11, 16, 12, 4, tzinfo=UTC)
BEFORE = MINUTE - timedelta(minutes=1)
SECOND = timedelta(seconds=1)


def test_a_minute_that_has_just_begun_does_not_make_a_rate_drop() -> None:
    flows = [FlowMinute(minute=BEFORE, submitted=600, completed=300, failed=60)]
    assert rates_of(flows, MINUTE + SECOND).submitted == 600 / 61
    flows.append(FlowMinute(minute=MINUTE, submitted=300, completed=150, failed=30))
    assert rates_of(flows, MINUTE + 30 * SECOND) == Rates(submitted=10, completed=5, failed=1)


def test_a_minute_before_the_previous_one_is_not_counted() -> None:
    old = FlowMinute(minute=BEFORE - timedelta(minutes=1), submitted=600)
    assert rates_of([old], MINUTE + SECOND) == Rates()


def test_failures_are_attempts_and_a_job_that_died_without_one_is_not_counted() -> None:
    expired = FlowMinute(minute=BEFORE, completed=90, retried=8, failed=10, dead=30)
    rates = rates_of([expired], MINUTE + 30 * SECOND)
    assert (rates.failed, rates.failed_share) == (10 / 90, pytest.approx(0.1))
    assert Rates().failed_share is None


def test_the_longest_wait_is_that_of_what_may_be_dispatched() -> None:
    def topic(waits: float | None, *, paused: bool = False) -> SimpleNamespace:
        return SimpleNamespace(paused=paused, waiting_since=None if waits is None else MINUTE - waits * SECOND)

    assert longest_wait([topic(2), topic(3600, paused=True), topic(None)], MINUTE) == 2 * SECOND
    assert longest_wait([topic(3600, paused=True)], MINUTE) is None
    assert wait_of(topic(-3), MINUTE) == timedelta(0), "no negative wait"
    assert not waits_long(WAITING_LONG)
    assert waits_long(WAITING_LONG + SECOND)
