"""Schedules between the wire and the domain."""

from __future__ import annotations

from datetime import UTC
from typing import Final

from headgate.api.grpc.codec import answers, at_us, duration, moment, policy_message, retry_policy
from headgate.domain import limits
from headgate.domain.errors import InvalidInput
from headgate.domain.schedules import After, At, CatchUp, Cron, Every, Overlap, ScheduleSpec, Timing, WhenFull
from headgate.domain.timestamps import EPOCH
from headgate.domain.validation import to_ms
from headgate.domain.views import ScheduledJob, ScheduleView
from headgate.wire import schedules_pb2 as pb

_OVERLAPS: Final = {
    pb.OVERLAP_ALLOW: Overlap.ALLOW,
    pb.OVERLAP_SKIP: Overlap.SKIP,
    pb.OVERLAP_REPLACE: Overlap.REPLACE,
}
_CATCH_UPS: Final = {
    pb.CATCH_UP_ONE: CatchUp.ONE,
    pb.CATCH_UP_ALL: CatchUp.ALL,
    pb.CATCH_UP_NONE: CatchUp.NONE,
}
_WHEN_FULLS: Final = {pb.WHEN_FULL_WAIT: WhenFull.WAIT, pb.WHEN_FULL_SKIP: WhenFull.SKIP}
_WHEN_FULLS_OUT: Final = {policy: number for number, policy in _WHEN_FULLS.items()}
_OVERLAPS_OUT: Final = {policy: number for number, policy in _OVERLAPS.items()}
_CATCH_UPS_OUT: Final = {policy: number for number, policy in _CATCH_UPS.items()}


def timing_of(timing: pb.Timing) -> Timing:
    """A timing; raises InvalidInput when none is set."""
    match timing.WhichOneof("kind"):
        case "at_us":
            return At(at=moment(timing.at_us, field="at"))
        case "after":
            return After(delay=duration(timing.after.delay_ms, field="after"))
        case "every":
            every = timing.every
            anchor = moment(every.anchor_us, field="anchor") if every.anchor_us else EPOCH
            return Every(interval=duration(every.interval_ms, field="every"), anchor=anchor)
        case "cron":
            return Cron(expression=timing.cron.expression, zone=timing.cron.zone or "UTC")
        case _:
            raise InvalidInput("timing", "is missing", hint="set one of at, after, every, cron")


def spec_of(spec: pb.ScheduleSpec) -> ScheduleSpec:
    """The spec of a request; raises InvalidInput naming the field."""
    if spec.overlap not in _OVERLAPS:
        raise InvalidInput("overlap", f"{spec.overlap} is not one of allow, skip, replace")
    if spec.catch_up not in _CATCH_UPS:
        raise InvalidInput("catch_up", f"{spec.catch_up} is not one of one, all, none")
    if spec.when_full not in _WHEN_FULLS:
        raise InvalidInput("when_full", f"{spec.when_full} is not one of wait, skip")
    return ScheduleSpec(
        topic=spec.topic,
        timing=timing_of(spec.timing),
        payload=spec.payload,
        priority=spec.priority if spec.HasField("priority") else None,
        max_attempts=spec.max_attempts or None,
        policy=retry_policy(spec.retry) if spec.HasField("retry") else None,
        headers=dict(spec.headers),
        tags=tuple(spec.tags),
        overlap=_OVERLAPS[spec.overlap],
        catch_up=_CATCH_UPS[spec.catch_up],
        catch_up_most=spec.catch_up_most or limits.CATCH_UP_MAX,
        ends_at=moment(spec.ends_us, field="ends_at") if spec.ends_us else None,
        source=spec.source,
        when_full=_WHEN_FULLS[spec.when_full],
    )


def schedule(view: ScheduleView) -> pb.Schedule:
    """A schedule as read."""
    paused_us = at_us(view.paused_at) if view.paused else 0
    return answers.of(pb.Schedule, view, spec=_spec(view.spec), paused_us=paused_us)


def scheduled_job(job: ScheduledJob) -> pb.ScheduledJob:
    """A job and its occurrence."""
    return answers.of(pb.ScheduledJob, job)


def zone_of(timing: Timing) -> str:
    """The time zone of a timing."""
    return timing.zone if isinstance(timing, Cron) else str(UTC)


def _spec(spec: ScheduleSpec) -> pb.ScheduleSpec:
    return answers.of(
        pb.ScheduleSpec,
        spec,
        timing=_timing(spec.timing),
        retry=None if spec.policy is None else policy_message(spec.policy),
        overlap=_OVERLAPS_OUT[spec.overlap],
        catch_up=_CATCH_UPS_OUT[spec.catch_up],
        catch_up_most=spec.catch_up_most if spec.catch_up is CatchUp.ALL else 0,
        when_full=_WHEN_FULLS_OUT[spec.when_full],
    )


def _timing(timing: Timing) -> pb.Timing:
    match timing:
        case At(at=at):
            return pb.Timing(at_us=at_us(at))
        case After(delay=delay, at=at):
            return pb.Timing(after=pb.After(delay_ms=to_ms(delay), at_us=at_us(at)))
        case Every(interval=interval, anchor=anchor):
            return pb.Timing(every=pb.Every(interval_ms=to_ms(interval), anchor_us=at_us(anchor)))
        case Cron(expression=expression, zone=zone):
            return pb.Timing(cron=pb.Cron(expression=expression, zone=zone))
