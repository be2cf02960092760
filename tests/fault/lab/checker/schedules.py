"""I8: each occurrence of a schedule became one job, or part of one; expected times come from another cron library."""

from __future__ import annotations

import importlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from tests.fault.lab.checker.model import NEVER, Model, Operation, Violation, ok
from tests.fault.lab.history import Event

croniter: Any = importlib.import_module("croniter").croniter  # it has no types
LATE_US: Final = 5_000_000
"""An occurrence this close to the end may not have been fired in time."""
EVERY, CRON = 2, 3
SKIP, CATCH_NONE = 1, 2


def every_occurrence_once(model: Model) -> Iterator[Violation]:
    """For each schedule: what was fired is exactly what its timing says, each occurrence once."""
    fired: defaultdict[tuple[str, str], list[Event]] = defaultdict(list)
    made: set[str] = set()
    for event in model.of_kind["final_fired"]:
        fired[event["tenant"], event["name"]].append(event)
        made.add(event["job_id"])
        if event["job_id"] not in model.row_of and not model.gone(event["job_id"]):
            yield Violation(
                invariant="I8", text=f"job {event['job_id']} of schedule {event['name']} is not there",
                job=event["job_id"],
            )  # fmt: skip
    for row in model.rows:
        if "schedule" in row.payload and row.job not in made:
            yield Violation(
                invariant="I8", text=f"job {row.job} of schedule {row.payload['schedule']} belongs to no occurrence",
                job=row.job,
            )  # fmt: skip
    jobs = Counter(event["job_id"] for events in fired.values() for event in events)
    for job, count in jobs.items():
        if count > 1:
            yield Violation(invariant="I8", text=f"job {job} stands for {count} occurrences by itself", job=job)
    for schedule in model.of_kind["final_schedule"]:
        runs = [run for run in fired[schedule["tenant"], schedule["name"]] if not run["triggered"]]
        yield from _one(model, schedule, runs)


def _one(model: Model, schedule: Event, runs: list[Event]) -> Iterator[Violation]:
    name = f"{schedule['tenant']}/{schedule['name']}"
    puts = _of(model, "schedule_put", schedule)
    pauses = _of(model, "schedule_pause", schedule)
    if not puts or schedule["kind"] not in (EVERY, CRON):
        return
    begun, surely_begun = puts[0].w, puts[0].w_end if ok(puts[0]) else NEVER
    over = min((one.w for one in pauses), default=model.events[-1].w)
    surely_over = min((one.w_end for one in pauses if ok(one)), default=NEVER)
    covered: Counter[int] = Counter()
    for run in runs:
        at, since = run["occurrence"], run["covers_from"] or run["occurrence"]
        stands_for = _occurrences(schedule, since, at)
        if at not in stands_for:
            yield Violation(invariant="I8", text=f"{name}: {_shown(at)} is none of its times", job=run["job_id"])
        if since < begun - model.skew_us or at > surely_over + model.skew_us:
            yield Violation(
                invariant="I8", text=f"{name}: fired for {_shown(at)}, when it was not active", job=run["job_id"]
            )
        covered.update(stands_for)
    for at, count in covered.items():
        if count > 1:
            yield Violation(invariant="I8", text=f"{name}: {_shown(at)} is covered {count} times")
    expected = _occurrences(schedule, surely_begun + 1, _settled(model, over))
    missing = [at for at in expected if at not in covered]
    # One skip may stand for several: what came due while no one could fire is skipped together.
    runs_missing = sum(
        place == 0 or expected[place - 1] in covered for place, at in enumerate(expected) if at in missing
    )
    allowed = schedule["skipped"] if schedule["overlap"] == SKIP or schedule["catch_up"] == CATCH_NONE else 0
    if runs_missing > allowed:
        yield Violation(
            invariant="I8",
            text=f"{name}: {len(missing)} times were never fired ({allowed} skips), the first {_shown(missing[0])}",
        )


def _settled(model: Model, over: int) -> int:
    """Up to when everything due must have been fired: not in the last seconds, nor since a fault that ended there."""
    end = over - LATE_US
    return min([end, *(start for start, stop in model.faults if stop > end - LATE_US)])


def _of(model: Model, what: str, schedule: Event) -> list[Operation]:
    return [
        one
        for one in model.asked(what)
        if (one.tenant, one.data["name"]) == (schedule["tenant"], schedule["name"]) and one.status != "fail"
    ]


def _occurrences(schedule: Event, since: int, until: int) -> list[int]:
    """Its times from `since` to `until`, both included, in µs: by arithmetic for a grid, by croniter for cron."""
    if until < since:
        return []
    if schedule["kind"] == EVERY:
        span, anchor = schedule["span_ms"] * 1000, schedule["at"]
        first = anchor + -(-(since - anchor) // span) * span
        return list(range(first, until + 1, span))
    zone = ZoneInfo(schedule["zone"])
    start = datetime.fromtimestamp(since / 1e6 - 0.001, UTC).astimezone(zone)
    times: Any = croniter(schedule["expression"], start)
    found: list[int] = []
    while (at := round(times.get_next(float)) * 1_000_000) <= until:
        found.append(at)
    return found


def _shown(at: int) -> str:
    return datetime.fromtimestamp(at / 1e6, UTC).isoformat()
