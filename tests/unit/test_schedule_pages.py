"""What a schedule has done: its jobs and what it skipped, in one order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from headgate.control.schedule_pages import history
from headgate.domain.ids import JobId
from headgate.domain.states import State
from headgate.domain.views import ScheduledJob, Skip

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)


def at(minute: int) -> datetime:
    return NOON + timedelta(minutes=minute)


def run(minute: int) -> ScheduledJob:
    return ScheduledJob(
        job_id=JobId(UUID(int=minute)),
        occurrence=at(minute),
        covers_from=None,
        triggered=False,
        state=State.COMPLETED,
    )


def skip(minute: int) -> Skip:
    return Skip(at=at(minute), why="overlap")


def test_skipped_occurrences_stand_between_the_jobs() -> None:
    assert history([run(4), run(2)], [skip(3), skip(1)], limit=20) == [run(4), skip(3), run(2), skip(1)]


def test_a_page_has_what_was_skipped_between_its_own_jobs() -> None:
    skips = [skip(9), skip(5), skip(3), skip(1)]
    assert history([run(8), run(4)], skips, limit=2) == [skip(9), run(8), skip(5), run(4)]
    assert history([run(2)], skips, limit=2, before=at(4)) == [skip(3), run(2), skip(1)]
