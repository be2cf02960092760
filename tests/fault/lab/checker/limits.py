"""I11: concurrency by topic and by key, order by key, and rates, counted from what was surely held."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from tests.fault.lab.checker.leases import surely_held_until
from tests.fault.lab.checker.model import Claim, Model, Row, Violation, ok

Window = tuple[int, int, str]
"""From, until, job."""


def limits_hold(model: Model) -> Iterator[Violation]:
    """The limits are set before the load begins and stay."""
    for one in model.asked("set_topic"):
        if not ok(one):
            continue
        settings, tenant, topic = one.data["settings"], one.tenant, str(one.data["topic"])
        name = f"{tenant}/{topic}"
        held = _held(model, tenant, topic)
        if "max_running" in settings:
            yield from _concurrency([window for windows in held.values() for window in windows],
                                    settings["max_running"], name)  # fmt: skip
        if "max_running_per_key" in settings:
            for key, windows in held.items():
                if key:
                    yield from _concurrency(windows, settings["max_running_per_key"], f"{name} key {key}")
        if settings.get("ordered_by_key"):
            yield from _ordered(model, tenant, topic)
        if "rate" in settings:
            yield from _rate([c for c in model.claims if (c.tenant, c.topic) == (tenant, topic)],
                             *settings["rate"], name=name)  # fmt: skip


def full(model: Model) -> dict[str, int]:
    """Of how many topics, and keys, the limit was used up at some moment, as far as that is certain."""
    found = {"limit_full": 0, "key_limit_full": 0}
    for one in model.asked("set_topic"):
        settings = one.data["settings"]
        if not ok(one) or not settings.keys() & {"max_running", "max_running_per_key"}:
            continue
        held = _held(model, one.tenant, str(one.data["topic"]))
        if "max_running" in settings:
            together = [window for windows in held.values() for window in windows]
            found["limit_full"] += most_at_once(together) >= settings["max_running"]
        if "max_running_per_key" in settings:
            most = settings["max_running_per_key"]
            found["key_limit_full"] += sum(most_at_once(windows) >= most for key, windows in held.items() if key)
    return found


def most_at_once(windows: Sequence[Window]) -> int:
    """The most of them that are open at one moment."""
    steps = sorted([(start, 1) for start, _, _ in windows] + [(end, -1) for _, end, _ in windows])
    running = most = 0
    for _, step in steps:
        running += step
        most = max(most, running)
    return most


def _held(model: Model, tenant: str, topic: str) -> dict[str, list[Window]]:
    """The certain windows of a topic's leases, by limit key."""
    found: defaultdict[str, list[Window]] = defaultdict(list)
    claimed = {(claim.job, claim.epoch): claim.at for claim in model.claims}
    for assign in model.assigns:
        row = model.row_of.get(assign.job)
        if row is None or (row.tenant, row.topic) != (tenant, topic):
            continue
        start = claimed.get((assign.job, assign.epoch), assign.w)
        end = surely_held_until(model, assign)
        if start + model.skew_us < end - model.skew_us:
            found[row.limit_key or ""].append((start + model.skew_us, end - model.skew_us, assign.job))
    return found


def _concurrency(windows: Sequence[Window], limit: int, name: str) -> Iterator[Violation]:
    steps = sorted([(start, 1, job) for start, _, job in windows] + [(end, -1, job) for _, end, job in windows])
    running = 0
    for _, step, job in steps:
        running += step
        if running > limit:
            yield Violation(invariant="I11", text=f"{running} jobs of {name} were held at once; limit {limit}", job=job)
            return


def _rate(claims: Sequence[Claim], count: int, period_ms: int, burst: int, *, name: str) -> Iterator[Violation]:
    per_us = count / (period_ms * 1000)
    for first, start in enumerate(claims):
        for last in range(first + burst, len(claims)):
            span = claims[last].at - start.at
            most = burst + span * per_us + 0.01
            if last - first + 1 > most:
                yield Violation(
                    invariant="I11",
                    text=f"{last - first + 1} jobs of {name} started within {span / 1e6:.3f} s; allowed: {most:.1f}",
                    job=claims[last].job,
                )
                return


def _ordered(model: Model, tenant: str, topic: str) -> Iterator[Violation]:
    """Of jobs with one key the next begins when the one before has ended for good."""
    lives: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for row in model.rows:
        claims = model.claims_of.get(row.job, ())
        if _plain(model, row, tenant, topic) and claims and row.finished is not None and row.limit_key:
            lives[row.limit_key].append((claims[0].at, row.finished, row.job))
    for key, found in lives.items():
        for (_, ended, one), (began, _, other) in pairwise(sorted(found)):
            if began < ended:
                yield Violation(
                    invariant="I11",
                    text=f"{tenant}/{topic} key {key}: job {other} began {(ended - began) / 1e6:.3f} s before {one}, "
                    "which had begun, had ended",
                    job=other,
                )


def _plain(model: Model, row: Row, tenant: str, topic: str) -> bool:
    return (row.tenant, row.topic) == (tenant, topic) and row.job not in model.verbs_of
