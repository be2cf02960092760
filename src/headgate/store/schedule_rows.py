"""Schedules as rows: what a row means, and the columns of a spec."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Final, assert_never

import asyncpg

from headgate.domain.errors import StoreError
from headgate.domain.ids import JobId
from headgate.domain.schedules import (
    After,
    At,
    CatchUp,
    Cron,
    Every,
    Overlap,
    ScheduleSpec,
    Timing,
    WhenFull,
)
from headgate.domain.timestamps import EPOCH
from headgate.domain.units import exact
from headgate.domain.validation import MILLISECOND, to_ms
from headgate.domain.views import ScheduleView, Skip
from headgate.store.connect import Connection
from headgate.store.names import Names

OVERLAPS: Final = (Overlap.ALLOW, Overlap.SKIP, Overlap.REPLACE)  # by their numbers in the table
CATCH_UPS: Final = (CatchUp.ONE, CatchUp.ALL, CatchUp.NONE)
WHEN_FULLS: Final = (WhenFull.WAIT, WhenFull.SKIP)


async def view_of(db: Connection, names: Names, row: asyncpg.Record) -> ScheduleView:
    spec = ScheduleSpec(
        topic=row[3],
        priority=row[4],
        max_attempts=row[5],
        policy=None if row[6] is None else await names.policy_by_no(db, row[6]),
        payload=row[7],
        headers=json.loads(row[8] or "{}"),
        tags=tuple(row[9]),
        timing=timing_of(*row[10:15]),
        overlap=OVERLAPS[row[15]],
        catch_up=CATCH_UPS[row[16]],
        catch_up_most=row[17],
        ends_at=row[18],
        source=row[31],
        when_full=WHEN_FULLS[row[35]],
    )
    return ScheduleView(
        schedule_no=row[0],
        name=row[1],
        version=row[2],
        spec=spec,
        next_at=row[19],
        last_at=row[20],
        last_job_id=None if row[21] is None else JobId(row[21]),
        fired=row[22],
        skipped=row[23],
        last_skip=row[24] or "",
        last_skip_at=row[25],
        last_error=row[26] or "",
        paused=row[27],
        paused_by=row[28],
        paused_at=row[29],
        reason=row[30],
        created_at=row[32],
        changed_at=row[33],
        changed_by=row[34],
        full_since=row[36],
        skips=[Skip(at=at, why=why) for at, why in zip(row[37], row[38], strict=True)],
    )


def timing_of(kind: int, at: datetime | None, span_ms: int | None, expression: str | None, zone: str | None) -> Timing:
    span = (span_ms or 0) * MILLISECOND
    if kind == 3 and expression is not None and zone is not None:
        return Cron(expression=expression, zone=zone)
    if kind == 2 and at is not None:
        return Every(interval=span, anchor=at)
    if kind == 1 and at is not None:
        return After(delay=span, at=at)
    if kind == 0 and at is not None:
        return At(at=at)
    raise StoreError(f"a row of headgate.schedules has a kind {kind} that this release does not know")


def values_of(spec: ScheduleSpec, topic_no: int, policy_no: int | None, first: datetime | None) -> tuple[object, ...]:
    """The columns from topic_no to next_at, in the order of INSERT and UPDATE."""
    at: datetime | None = None
    span_ms: int | None = None
    expression: str | None = None
    zone: str | None = None
    match spec.timing:
        case At(at=moment):
            kind, at = 0, moment
        case After(delay=delay, at=moment):
            kind, at, span_ms = 1, moment or first, to_ms(delay)
        case Every(interval=interval, anchor=anchor):
            kind, at, span_ms = 2, anchor, to_ms(interval)
        case Cron():
            kind, expression, zone = 3, spec.timing.expression, spec.timing.zone
        case _:
            assert_never(spec.timing)
    return (
        topic_no,
        spec.priority,
        spec.max_attempts,
        policy_no,
        spec.payload,
        json.dumps(dict(spec.headers), ensure_ascii=False) if spec.headers else None,
        list(spec.tags),
        kind,
        at,
        span_ms,
        expression,
        zone,
        OVERLAPS.index(spec.overlap),
        CATCH_UPS.index(spec.catch_up),
        spec.catch_up_most,
        spec.ends_at,
        spec.source,
        WHEN_FULLS.index(spec.when_full),
        first,
    )


def resolved(spec: ScheduleSpec, before: ScheduleSpec) -> ScheduleSpec:
    """The same delay put again means the moment it meant the first time."""
    if isinstance(spec.timing, After) and isinstance(before.timing, After) and spec.timing.delay == before.timing.delay:
        spec = replace(spec, timing=before.timing)
    return spec


def summary(view: ScheduleView) -> dict[str, object]:
    """What an audit keeps of a schedule: enough to see what changed, and never the payload."""
    spec, timing = view.spec, view.spec.timing
    match timing:
        case At(at=at):
            when = f"at {at.isoformat()}"
        case After(delay=delay):
            when = f"after {exact(delay)}"
        case Every(interval=interval, anchor=anchor):
            # Counted from 1970 unless an operator has said otherwise.
            when = f"every {exact(interval)}" + ("" if anchor == EPOCH else f" from {anchor.isoformat()}")
        case Cron(expression=expression, zone=zone):
            when = f"{expression} {zone}"
        case _:
            assert_never(timing)
    return {
        "version": view.version,
        "topic": spec.topic,
        "when": when,
        "priority": spec.priority,
        "overlap": spec.overlap.value,
        "catch_up": spec.catch_up.value,
        "when_full": spec.when_full.value,
        "paused": view.paused,
        "payload_bytes": len(spec.payload),
    }
