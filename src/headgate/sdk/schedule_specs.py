"""The options of a schedule: checked, and encoded for the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, TypedDict

from headgate.domain import limits
from headgate.domain.backoff import RetryPolicy
from headgate.domain.cron import check_zone, parse_cron
from headgate.domain.errors import InvalidInput
from headgate.domain.schedules import CatchUp, parse_catch_up, parse_overlap, parse_when_full
from headgate.domain.timestamps import unix_us
from headgate.domain.validation import check_aware, check_integer, check_span, shown
from headgate.sdk.options import PLAIN, JobOptions, Prepared, PriorityTier
from headgate.sdk.outcomes import Seconds, delay_in_ms
from headgate.wire import schedules_pb2 as pb


class ScheduleOptions(TypedDict, total=False):
    """What a schedule says about its jobs, and what it does when they overlap or were missed."""

    overlap: Literal["allow", "skip", "replace"]
    """allow (default), skip: no job while an earlier one is not finished, replace: cancel the earlier one first."""
    catch_up: Literal["one", "all", "none"] | int
    """one (default): what was missed becomes one job; a number n: a job each, the newest n; all: 100; none."""
    when_full: Literal["wait", "skip"]
    """When its topic's backlog is full (max_backlog): wait (default), or skip the occurrence."""
    priority: int | PriorityTier
    max_attempts: int
    retry: RetryPolicy
    headers: Mapping[str, str]
    tags: Sequence[str]
    ends_at: datetime


class When(TypedDict, total=False):
    """When a schedule fires: one of cron (with its zone), every (with its anchor), at, after."""

    cron: str | None
    zone: str
    every: Seconds | None
    anchor: datetime | None
    at: datetime | None
    after: Seconds | None


_OF_JOBS: Final = ("priority", "max_attempts", "retry", "headers", "tags")
KNOWN: Final = frozenset(ScheduleOptions.__annotations__)


def timing(
    *,
    cron: str | None = None,
    zone: str = "UTC",
    every: Seconds | None = None,
    anchor: datetime | None = None,
    at: datetime | None = None,
    after: Seconds | None = None,
) -> pb.Timing:
    """When: exactly one of cron, every, at, after."""
    given = [
        name for name, value in (("cron", cron), ("every", every), ("at", at), ("after", after)) if value is not None
    ]
    if len(given) != 1:
        raise InvalidInput("schedule", f"needs one of cron, every, at, after; got {' and '.join(given) or 'none'}")
    if cron is not None:
        if not isinstance(cron, str):
            raise InvalidInput("cron", f"must be a cron expression, got {shown(cron)}")
        parse_cron(cron)
        check_zone(zone)
        return pb.Timing(cron=pb.Cron(expression=cron, zone=zone))
    if every is not None:
        interval = delay_in_ms(every, field="every")
        check_span(timedelta(milliseconds=interval), field="every", low=limits.EVERY_MIN, high=limits.EVERY_MAX)
        start = 0 if anchor is None else unix_us(check_aware(anchor, field="anchor"))
        return pb.Timing(every=pb.Every(interval_ms=interval, anchor_us=start))
    if at is not None:
        return pb.Timing(at_us=unix_us(check_aware(at, field="at")))
    return pb.Timing(after=pb.After(delay_ms=delay_in_ms(after or 0, field="after")))


def spec(
    topic: str,
    when: pb.Timing,
    payload: bytes,
    options: ScheduleOptions,
    *,
    defaults: Prepared | None = None,
    source: str = "",
) -> pb.ScheduleSpec:
    """A schedule as it is sent; `defaults` are the options of the task it submits.

    What its handler declares is no part of it: a job of a schedule gets the rules of its topic, as any other.
    """
    unknown = sorted(options.keys() - KNOWN)
    if unknown:
        raise InvalidInput("options", f"has no {', '.join(unknown)}", hint=f"there are {', '.join(sorted(KNOWN))}")
    given = JobOptions(**{name: options[name] for name in _OF_JOBS if name in options})  # type: ignore[typeddict-item]
    job = (defaults or PLAIN).over(given).new_job(topic, b"", payload)
    catch_up, most = _catch_up(options.get("catch_up", "one"))
    ends_at = options.get("ends_at")
    return pb.ScheduleSpec(
        topic=topic,
        timing=when,
        payload=payload,
        priority=job.priority if job.HasField("priority") else None,
        max_attempts=job.max_attempts,
        retry=job.retry if job.HasField("retry") else None,
        headers=job.headers,
        tags=job.tags,
        overlap=pb.Overlap.Value(f"OVERLAP_{parse_overlap(options.get('overlap', 'allow')).name}"),
        catch_up=pb.CatchUp.Value(f"CATCH_UP_{catch_up.name}"),
        catch_up_most=most,
        ends_us=0 if ends_at is None else unix_us(check_aware(ends_at, field="ends_at")),
        source=source,
        when_full=pb.WhenFull.Value(f"WHEN_FULL_{parse_when_full(options.get('when_full', 'wait')).name}"),
    )


def _catch_up(value: object) -> tuple[CatchUp, int]:
    if isinstance(value, int):
        return CatchUp.ALL, check_integer(value, field="catch_up", low=1, high=limits.CATCH_UP_MAX)
    return parse_catch_up(value), 0
