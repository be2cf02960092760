"""Attempts and the time line of a job: made from times of the database only, without gaps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from headgate.domain.attempts import Stretch, attempts_of, timeline_of
from headgate.domain.ids import JobId, parse_job_id
from headgate.domain.states import EventKind, State
from headgate.domain.views import JobEvent, JobView

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
ID: JobId = parse_job_id("0190a3b2-7c4d-7abc-8def-0123456789ab")


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def event(
    kind: EventKind, seconds: float, *, began: float | None = None, due: float | None = None, attempt: int = 1
) -> JobEvent:
    final = kind in (EventKind.CANCELLED,) or (kind is EventKind.FAILED and due is None)
    return JobEvent(
        at=at(seconds),
        kind=kind,
        epoch=attempt,
        attempt=attempt,
        state=State.DEAD if final else State.RETRYING,
        run_at=None if due is None else at(due),
        claimed_at=None if began is None else at(began),
        worker="w-1",
        actor=None,
        reason=None,
        error_type="ValueError",
        error_message="boom",
        error_trace="Traceback",
        detail={},
    )


def job(state: State, *events: JobEvent, **more: object) -> JobView:
    known: dict[str, object] = {
        "id": ID,
        "topic_no": 1,
        "state": state,
        "priority": 0,
        "attempt": 1,
        "max_attempts": 3,
        "epoch": 7,
        "policy_no": 1,
        "last_outcome": None,
        "cancel_requested": False,
        "owner": None,
        "worker": "w-1",
        "created_at": NOON,
        "run_at": NOON,
        "claimed_at": None,
        "lease_until": None,
        "finished_at": None,
        "last_error": None,
        "headers": {},
        "deadline": None,
        "rank_class": None,
        "rank_at": None,
        "events": events,
    }
    return JobView(**(known | more))  # type: ignore[arg-type]


def kinds(view: JobView, now: float) -> list[tuple[Stretch, float]]:
    spans = timeline_of(view, now=at(now))
    assert all(one.ends == other.begins for one, other in pairwise(spans))  # no gap, no overlap
    assert [span.open for span in spans[:-1]] == [False] * (len(spans) - 1)
    return [(span.kind, span.duration.total_seconds()) for span in spans]


def test_a_delayed_job_that_completes_was_delayed_queued_and_ran() -> None:
    done = job(State.COMPLETED, run_at=at(10), claimed_at=at(12), finished_at=at(15))
    assert kinds(done, 100) == [(Stretch.DELAYED, 10), (Stretch.QUEUED, 2), (Stretch.RAN, 3)]
    (attempt,) = attempts_of(done)
    assert (attempt.outcome, attempt.duration, attempt.epoch) == ("completed", timedelta(seconds=3), 7)


def test_a_retried_job_has_its_attempts_newest_first_and_the_waits_between_them() -> None:
    failed = event(EventKind.FAILED, 5, began=2, due=9)
    expired = event(EventKind.LEASE_EXPIRED, 40, began=10, due=44, attempt=2)
    running = job(State.RUNNING, failed, expired, attempt=3, claimed_at=at(45))
    assert [(one.number, one.outcome) for one in attempts_of(running)] == [
        (3, "running"),
        (2, "lease_expired"),
        (1, "failed"),
    ]
    assert kinds(running, 50) == [
        (Stretch.QUEUED, 2),
        (Stretch.FAILED, 3),
        (Stretch.DELAYED, 4),
        (Stretch.QUEUED, 1),
        (Stretch.FAILED, 30),
        (Stretch.DELAYED, 4),
        (Stretch.QUEUED, 1),
        (Stretch.RAN, 5),
    ]
    assert timeline_of(running, now=at(50))[-1].open


def test_a_redriven_job_rested_until_then() -> None:
    dead = event(EventKind.FAILED, 5, began=2)
    redriven = event(EventKind.REDRIVEN, 65)
    pending = job(State.PENDING, dead, redriven, attempt=0)
    assert kinds(pending, 70) == [(Stretch.QUEUED, 2), (Stretch.FAILED, 3), (Stretch.RESTED, 60), (Stretch.QUEUED, 5)]
    assert timeline_of(pending, now=at(70))[-1].open


@pytest.mark.parametrize(
    ("state", "due", "expected"),
    [
        (State.SCHEDULED, 100, [(Stretch.DELAYED, 30.0)]),
        (State.PENDING, 0, [(Stretch.QUEUED, 30.0)]),
        (State.BLOCKED, 0, [(Stretch.DELAYED, 30.0)]),
    ],
)
def test_a_job_that_waits_is_open_until_now(state: State, due: float, expected: list[tuple[Stretch, float]]) -> None:
    waiting = job(state, run_at=at(due))
    assert kinds(waiting, 30) == expected
    assert timeline_of(waiting, now=at(30))[-1].open


def test_a_clock_that_is_behind_gives_no_negative_time() -> None:
    running = job(State.RUNNING, claimed_at=at(5))
    assert kinds(running, 3) == [(Stretch.QUEUED, 5), (Stretch.RAN, 0)]


def test_a_time_line_without_its_oldest_events_begins_with_the_first_that_is_known() -> None:
    known = event(EventKind.FAILED, 100, began=90, due=110)
    found = timeline_of(job(State.RETRYING, known, run_at=at(110), older_events=True), now=at(105))
    assert [(span.kind, span.begins, span.ends) for span in found] == [
        (Stretch.FAILED, at(90), at(100)),
        (Stretch.DELAYED, at(100), at(105)),
    ]
