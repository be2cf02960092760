"""What a filter of jobs means for the statements: which order to choose ids from, and the arguments of the look-up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from headgate.domain.states import State

if TYPE_CHECKING:
    from headgate.store.listing import Filter

_BEGINNING, _END = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
_DAY: Final = timedelta(days=1)
CLOCK_STEP: Final = _DAY
"""How far the clock may be set back without hiding jobs from a filter by time of creation."""


def days_of(matching: Filter) -> tuple[datetime, datetime]:
    """The whole UTC days, and so the partitions, in which what matches has ended.

    A job ends after it was created; or before that, if the clock was set back meanwhile. Up to a day is allowed for.
    """
    created = max(matching.created_from or _BEGINNING, _BEGINNING + CLOCK_STEP) - CLOCK_STEP
    since = max(matching.finished_from or _BEGINNING, created).astimezone(UTC)
    until = matching.finished_before or _END
    if matching.ended_by is not None and matching.ended_by < until:
        until = matching.ended_by
    until = until.astimezone(UTC)
    since = since.replace(hour=0, minute=0, second=0, microsecond=0)
    return since, until if until == _END else until.replace(hour=0, minute=0, second=0, microsecond=0) + _DAY


def order_of(matching: Filter) -> tuple[str, str | None, int | None]:
    """The narrowest order that holds all that the filter can match, with its tag or unique key, or its schedule."""
    if matching.tags:
        return "tagged", matching.tags[0], None
    for choice in matching.tag_choices:
        if len(choice) == 1:
            return "tagged", next(iter(choice)), None
    if (schedule_no := _only_schedule(matching)) is not None:
        return "scheduled", None, schedule_no
    if matching.unique_keys is not None and len(matching.unique_keys) == 1:
        return "unique", next(iter(matching.unique_keys)), None
    days = days_of(matching)
    narrow = days != (_BEGINNING, _END)
    for few, name in (
        ({State.RUNNING}, "running"),
        ({State.SCHEDULED, State.RETRYING}, "waiting"),
        ({State.DEAD, State.CANCELLED}, "ended_badly" if narrow else "unhappy"),
        ({state for state in State if not state.is_final}, "live"),
        ({state for state in State if state.is_final}, "ended" if narrow else "finished"),
    ):
        if matching.states is not None and matching.states <= few:
            return name, None, None
    if matching.finished_from is not None or matching.finished_before is not None:
        return "ended", None, None  # a live job has no such time
    return "recent" if narrow else "all", None, None


def _only_schedule(matching: Filter) -> int | None:
    if matching.schedule_no is not None:
        return matching.schedule_no
    return next(iter(matching.schedule_nos)) if matching.schedule_nos and len(matching.schedule_nos) == 1 else None


def look_up_arguments(matching: Filter, *, oldest: bool = False) -> tuple[object, ...]:
    """$4 and on of LOOK_UP."""
    schedules = matching.schedule_nos if matching.schedule_no is None else {matching.schedule_no}
    if matching.schedule_no is not None and matching.schedule_nos is not None:
        schedules = {matching.schedule_no} & matching.schedule_nos
    return (
        None if matching.states is None else [int(state) for state in matching.states],
        _listed(matching.topic_nos),
        matching.created_from,
        matching.created_before,
        matching.priority_from,
        matching.priority_to,
        None if not matching.tags else list(matching.tags),
        _listed(schedules),
        _listed(matching.not_schedule_nos),
        *_flat(matching.tag_choices),
        _listed(matching.not_tags),
        matching.finished_from,
        matching.finished_before,
        matching.due_from,
        matching.due_before,
        matching.started_from,
        matching.started_before,
        _listed(matching.priorities),
        _listed(matching.not_priorities),
        matching.attempts_from,
        matching.attempts_to,
        _listed(matching.attempts),
        _listed(matching.not_attempts),
        *_flat(matching.workers),
        _flat(matching.not_workers)[0],
        *_flat(matching.errors),
        _flat(matching.not_errors)[0],
        _listed(matching.ids),
        _listed(matching.not_ids),
        matching.ended_by,
        oldest,
        _listed(matching.unique_keys),
        _listed(matching.not_unique_keys),
    )


def _flat(choices: Sequence[Iterable[str]]) -> tuple[list[str] | None, list[int] | None, int]:
    """All texts of some choices, the choice that each belongs to, and how many choices there are."""
    flat = [(text, index) for index, choice in enumerate(choices) for text in choice]
    return [text for text, _ in flat] or None, [index for _, index in flat] or None, len(choices)


def _listed(values: Iterable[object] | None) -> list[object] | None:
    return None if values is None else list(values)
