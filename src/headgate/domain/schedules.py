"""When a schedule makes its jobs: the kinds, the policies, and the plan for what is due. Pure: no clock, no I/O.

An occurrence is a moment at which a schedule is to make a job; there is one job per occurrence, on any instance. A
plan says which of the occurrences that have come become jobs and when to look again. It is made by any instance, from
what it read; the store carries it out only if the schedule still stands as it was read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias, assert_never
from uuid import UUID

from headgate.domain import limits
from headgate.domain import validation as check
from headgate.domain.backoff import RetryPolicy
from headgate.domain.cron import check_zone, next_occurrence, parse_cron
from headgate.domain.errors import InvalidInput
from headgate.domain.ids import JobId, derived_job_id
from headgate.domain.timestamps import EPOCH, unix_us

LATE_AFTER: Final = timedelta(seconds=30)
"""With catch-up `none`, an occurrence older than this was missed. Firing in time is late by a second or two."""
_SEARCH_FIRST: Final = timedelta(minutes=10)
_NAME = re.compile(limits.SCHEDULE_NAME_PATTERN)
_NAME_RULE: Final = (
    f"use 1 to {limits.SCHEDULE_NAME_MAX_CHARS} of A-Z a-z 0-9 . _ : / - beginning with a letter or digit"
)


class Overlap(StrEnum):
    """What happens at an occurrence while an earlier job of the schedule is not finished."""

    ALLOW = "allow"
    SKIP = "skip"
    REPLACE = "replace"


class CatchUp(StrEnum):
    """What becomes of occurrences that passed while no instance could fire them."""

    ONE = "one"
    ALL = "all"
    NONE = "none"


class WhenFull(StrEnum):
    """What becomes of an occurrence for whose job the backlog of its topic has no room (max_backlog)."""

    WAIT = "wait"  # it stays due until there is room
    SKIP = "skip"  # it is left out, and counted as skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """Once, at a moment."""

    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """Once, so long after the schedule was stored; `at` is the moment that came of it."""

    delay: timedelta
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """On a grid: anchor + k × interval. Late firing never moves the grid."""

    interval: timedelta
    anchor: datetime = EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """At the times of a cron expression, by the clocks of a zone."""

    expression: str
    zone: str = "UTC"


Timing: TypeAlias = At | After | Every | Cron


def check_timing(timing: Timing, *, now: datetime | None = None) -> Timing:
    """Accept a timing that can fire; gives it in its one form. `now` bounds how far ahead a single moment may lie."""
    match timing:
        case At(at=at):
            return At(at=check.check_run_at(at, now=now, field="at"))
        case After(delay=delay, at=at):
            return After(delay=check.check_delay(delay, field="after"), at=at)
        case Every(interval=interval, anchor=anchor):
            span = check.check_span(interval, field="every", low=limits.EVERY_MIN, high=limits.EVERY_MAX)
            moment = check.check_aware(anchor, field="anchor").astimezone(UTC)
            if not EPOCH <= moment < datetime(2200, 1, 1, tzinfo=UTC):
                raise InvalidInput("anchor", f"must be from 1970 to 2199, got {check.shown(anchor)}")
            return Every(interval=span, anchor=moment)
        case Cron(expression=expression, zone=zone):
            if not isinstance(expression, str):
                raise InvalidInput("cron", f"must be a cron expression, got {check.shown(expression)}")
            parse_cron(expression)
            check_zone(zone)
            return Cron(expression=" ".join(expression.split()), zone=zone)
        case _:
            assert_never(timing)


def check_schedule_name(value: object, *, field: str = "name") -> str:
    """Accept the name of a schedule: a topic's alphabet, for its reasons."""
    name = check.check_text(value, field=field, high=limits.SCHEDULE_NAME_MAX_CHARS, hint=_NAME_RULE)
    if not _NAME.fullmatch(name) or any(part in name for part in limits.TOPIC_FORBIDDEN):
        raise InvalidInput(field, f"is not the name of a schedule, got {check.shown(name)}", hint=_NAME_RULE)
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec:
    """All that a caller says about a schedule. Its timing is checked when it is stored, by `checked`.

    Not when it is made: a stored one whose zone has left the database of zones must still be shown.
    """

    topic: str
    timing: Timing
    payload: bytes = b""
    priority: int | None = None  # None: the topic's
    max_attempts: int | None = None  # None: the topic's
    policy: RetryPolicy | None = None  # None: the topic's
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    tags: tuple[str, ...] = ()
    overlap: Overlap = Overlap.ALLOW
    catch_up: CatchUp = CatchUp.ONE
    catch_up_most: int = limits.CATCH_UP_MAX  # of catch_up ALL
    when_full: WhenFull = WhenFull.WAIT
    ends_at: datetime | None = None
    source: str = ""  # which program declared it; empty: a person

    def __post_init__(self) -> None:
        check.check_topic(self.topic)
        check.check_payload(self.payload)
        if self.priority is not None:
            check.check_priority(self.priority)
        if self.max_attempts is not None:
            check.check_max_attempts(self.max_attempts)
        if self.policy is not None and not isinstance(self.policy, RetryPolicy):
            raise InvalidInput("retry", f"must be a RetryPolicy, got {check.shown(self.policy)}")
        object.__setattr__(self, "headers", check.check_headers(self.headers))
        object.__setattr__(self, "tags", check.check_tags(self.tags))
        check.check_integer(self.catch_up_most, field="catch_up_most", low=1, high=limits.CATCH_UP_MAX)
        if self.catch_up is not CatchUp.ALL:  # one form: it means nothing then
            object.__setattr__(self, "catch_up_most", limits.CATCH_UP_MAX)
        if self.ends_at is not None:
            object.__setattr__(self, "ends_at", check.check_aware(self.ends_at, field="ends_at").astimezone(UTC))
        check.check_text(self.source, field="source", low=0, high=200)

    def checked(self, *, now: datetime) -> ScheduleSpec:
        """The same with its timing checked and in its one form."""
        return replace(self, timing=check_timing(self.timing, now=now))


def never_fires(spec: ScheduleSpec) -> InvalidInput:
    """The error for a schedule none of whose occurrences can come any more."""
    hint = "" if spec.ends_at is None else f"it ends at {spec.ends_at.isoformat()}"
    return InvalidInput("schedule", "never fires: it has no occurrence from now on", hint=hint)


def parse_overlap(value: object) -> Overlap:
    """The policy of that name; refuses others and lists what there is."""
    return Overlap(_choice(value, [policy.value for policy in Overlap], field="overlap"))


def parse_catch_up(value: object) -> CatchUp:
    """The policy of that name; refuses others and lists what there is."""
    return CatchUp(_choice(value, [policy.value for policy in CatchUp], field="catch_up"))


def parse_when_full(value: object) -> WhenFull:
    """The policy of that name; refuses others and lists what there is."""
    return WhenFull(_choice(value, [policy.value for policy in WhenFull], field="when_full"))


def _choice(value: object, known: list[str], *, field: str) -> str:
    if not isinstance(value, str) or value not in known:
        raise InvalidInput(field, f"must be one of {', '.join(known)}, got {check.shown(value)}")
    return value


# --- occurrences ---------------------------------------------------------------------------------------------------


def next_after(timing: Timing, after: datetime) -> datetime | None:
    """The first occurrence after a moment, in UTC. Strictly later, and the same for every caller."""
    match timing:
        case At(at=at):
            return at if at > after else None
        case After(at=at):
            return at if at is not None and at > after else None
        case Every(interval=interval, anchor=anchor):
            if after < anchor:
                return anchor
            return anchor + ((after - anchor) // interval + 1) * interval
        case Cron(expression=expression, zone=zone):
            return next_occurrence(parse_cron(expression), check_zone(zone), after)
        case _:
            assert_never(timing)


def occurrences(timing: Timing, after: datetime, *, until: datetime | None = None) -> Iterator[datetime]:
    """The occurrences after a moment, in order, up to and including `until`."""
    at = next_after(timing, after)
    while at is not None and (until is None or at <= until):
        yield at
        at = next_after(timing, at)


def first_occurrence(
    timing: Timing, *, now: datetime, last: datetime | None, ends_at: datetime | None
) -> datetime | None:
    """When a schedule that is stored or resumed now fires next.

    Never again at or before `last`, the newest occurrence it has dealt with: the clock may have been set back. A
    single moment in the past is kept, and is then missed or caught up like any other.
    """
    match timing:
        case At(at=at):
            first: datetime | None = at
        case After(delay=delay, at=at):
            first = now + delay if at is None else at
        case _:
            first = next_after(timing, now if last is None else max(now, last))
    if first is None or (last is not None and first <= last) or (ends_at is not None and first > ends_at):
        return None
    return first


def newest(timing: Timing, *, due: datetime, until: datetime, most: int) -> list[datetime]:
    """The newest occurrences from `due` (one itself) to `until`, at most so many, ascending.

    Looks back from the end over spans that double, so that the cost depends on `most` and not on the outage.
    """
    match timing:
        case At() | After():
            return [due]
        case Every(interval=interval):
            steps = (until - due) // interval
            return [due + step * interval for step in range(max(0, steps - most + 1), steps + 1)]
        case Cron():
            span = _SEARCH_FIRST
            while True:
                if until - due <= span:
                    return [due, *occurrences(timing, due, until=until)][-most:]
                found = list(occurrences(timing, until - span, until=until))
                if len(found) >= most:
                    return found[-most:]
                span *= 2
        case _:
            assert_never(timing)


@dataclass(frozen=True, slots=True, kw_only=True)
class DueSchedule:
    """A schedule whose time has come, as an instance read it: `version` and `due` must still stand when it fires."""

    schedule_no: int
    tenant_no: int
    seed: UUID  # random, and not known outside: what the ids of its jobs are made from
    version: int
    timing: Timing
    overlap: Overlap
    catch_up: CatchUp
    catch_up_most: int
    due: datetime
    ends_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One job to make. It stands for all occurrences from `covers_from` to its own."""

    id: JobId
    occurrence: datetime
    covers_from: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """What is to become of a due schedule: its jobs (none, when all were missed), and when it is due again."""

    schedule: DueSchedule
    runs: tuple[Run, ...]
    next_at: datetime | None
    missed: datetime | None = None  # the newest occurrence that was left out for being too late


def plan(schedule: DueSchedule, *, now: datetime) -> Firing:
    """Decide which occurrences up to `now` become jobs.

    Where jobs of one schedule must not overlap, what is caught up is one job: more could not run side by side.
    """
    upcoming = next_after(schedule.timing, schedule.due)
    in_time = upcoming is None or upcoming > now
    if not in_time:
        upcoming = next_after(schedule.timing, now)
    if upcoming is not None and schedule.ends_at is not None and upcoming > schedule.ends_at:
        upcoming = None
    until = now if schedule.ends_at is None else max(schedule.due, min(now, schedule.ends_at))
    many = schedule.catch_up is CatchUp.ALL and schedule.overlap is Overlap.ALLOW
    most = schedule.catch_up_most if many else 1
    # Nearly always in time: then there is nothing to search for, and ten thousand plans take half as long.
    chosen = [schedule.due] if in_time else newest(schedule.timing, due=schedule.due, until=until, most=most)
    missed = None
    if schedule.catch_up is CatchUp.NONE and now - chosen[-1] > LATE_AFTER:
        missed, chosen = chosen[-1], []
    runs = tuple(
        Run(
            id=occurrence_job_id(schedule.seed, at),
            occurrence=at,
            # Caught up one by one, each stands for itself; the oldest also for those before it that are left out.
            covers_from=at if place else schedule.due,
        )
        for place, at in enumerate(chosen)
    )
    return Firing(schedule=schedule, runs=runs, next_at=upcoming, missed=missed)


def occurrence_job_id(seed: UUID, occurrence: datetime) -> JobId:
    """The id of an occurrence's job: every instance arrives at the same one, and no one else can.

    Who could guess it would submit a job of their own under it, and the occurrence would count as made.
    """
    return derived_job_id(seed.bytes, str(unix_us(occurrence)), at_ms=max(0, unix_us(occurrence) // 1000))


def triggered_job_id(tenant_no: int, schedule_no: int, request: JobId) -> JobId:
    """The id of the job a trigger makes: asking again with the same request makes no second one."""
    return derived_job_id(f"trigger {tenant_no} {schedule_no}", request.bytes, at_ms=request.int >> 80)


# ---------------------------------------------------------------------- between the scheduler and the store

LOOK_SECONDS: Final = 1.0
"""Between two looks at what is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What is due at `now`; when nothing is, the moment at which something will be."""

    now: datetime
    schedules: Sequence[DueSchedule]
    next_look: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """What was done: schedules fired here, jobs made, occurrences skipped, schedules put off after an error.

    `waiting` are schedules whose topic has no capacity for their job: they stay due, and are looked at again later.
    """

    schedules: int = 0
    made: int = 0
    skipped: int = 0
    postponed: int = 0
    waiting: int = 0
    topic_nos: frozenset[int] = field(default_factory=frozenset)
    seen: int = 0
    wait: float = LOOK_SECONDS

    def __add__(self, other: Fired) -> Fired:
        return Fired(
            schedules=self.schedules + other.schedules,
            made=self.made + other.made,
            skipped=self.skipped + other.skipped,
            postponed=self.postponed + other.postponed,
            waiting=self.waiting + other.waiting,
            topic_nos=self.topic_nos | other.topic_nos,
            seen=self.seen + other.seen,
            wait=min(self.wait, other.wait),
        )
