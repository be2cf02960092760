"""The checker: reads a history and says which promise was broken, where, and what the run has covered.

Each invariant is a function from `Model` to violations. All of them use *certain windows* only: a lease counts as held
only while it surely was, a pause only from its answer to the asking of its resume. So what they report did happen.

I16 (webhooks) is not here: the scenarios that have receivers check it (scenarios/endpoints.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.fault.lab.checker import (
    batches,
    bulk,
    cancels,
    conservation,
    dependencies,
    fencing,
    isolation,
    keys,
    leases,
    limits,
    liveness,
    loss,
    order,
    pauses,
    retention,
    schedules,
    timing,
    unique,
)
from tests.fault.lab.checker.coverage import sometimes
from tests.fault.lab.checker.model import Model, Violation
from tests.fault.lab.history import Event

Invariant = Callable[[Model], Iterable[Violation]]
INVARIANTS: Final[dict[str, Invariant]] = {
    "I1": loss.nothing_acknowledged_is_lost,
    "I2": leases.one_live_lease,
    "I3": leases.attempts_are_bounded_and_end_once,
    "I4": fencing.only_the_newest_epoch_settles,
    "I5": fencing.one_terminal_state,
    "I6": order.priority_first,
    "I7": pauses.nothing_starts_while_paused,
    "I8": schedules.every_occurrence_once,
    "I9": timing.not_before_its_time,
    "I10": keys.one_job_per_key,
    "I11": limits.limits_hold,
    "I12": cancels.cancelled_means_cancelled,
    "I13": liveness.all_comes_to_an_end,
    "I14": isolation.tenants_are_apart,
    "I15": conservation.everything_adds_up,
    "I17": unique.one_live_job_per_unique_key,
    "I18": batches.callbacks_run_once_after_all,
    "I19": dependencies.children_wait_for_their_parents,
    "I20": bulk.operations_change_each_once,
    "I21": retention.kept_for_its_time_and_no_orphans,
    "I22": timing.soon_after_its_time,
}
CONTEXT: Final = 10
"""Lines shown before and after the first event of a violation."""
SHOWN: Final = 3


@dataclass(slots=True, kw_only=True)
class Report:
    """The verdict on one run."""

    violations: list[Violation]
    operations: Counter[str]
    coverage: dict[str, int]
    checked: tuple[str, ...]
    events: Sequence[Event] = field(repr=False)

    @property
    def passed(self) -> bool:
        return not self.violations

    @property
    def red(self) -> list[str]:
        """The invariants that were violated."""
        return sorted({one.invariant for one in self.violations}, key=lambda name: int(name[1:]))

    def text(self) -> str:
        """For people: verdict, counts, coverage, and the first violations with what happened around them."""
        counts = " ".join(f"{name}={count}" for name, count in sorted(self.operations.items()))
        covered = " ".join(f"{name}={count}" for name, count in self.coverage.items())
        verdict = f"ok, {' '.join(self.checked)} hold" if self.passed else f"VIOLATED {' '.join(self.red)}"
        lines = [
            f"verdict: {verdict}",
            f"operations: {counts}",
            f"sometimes: {covered}",
        ]
        per = Counter(one.invariant for one in self.violations)
        if per:
            lines.append("violations: " + " ".join(f"{name}={count}" for name, count in per.items()))
        seen: Counter[str] = Counter()
        for one in self.violations:
            seen[one.invariant] += 1
            if seen[one.invariant] <= SHOWN:
                lines.append(f"\n{one.invariant}: {one.text}")
                if seen[one.invariant] == 1:
                    lines += self._context(one)
        return "\n".join(lines)

    def _context(self, one: Violation) -> list[str]:
        if not self.events:
            return []
        since = self.events[0].t
        chosen = self.events
        if one.job:
            chosen = [event for event in self.events if one.job in str(event.data)]
        if not chosen:
            return []
        if not one.at:
            return [f"  {event.line(since)}" for event in chosen[: 2 * CONTEXT]]
        place = next((n for n, event in enumerate(chosen) if event.t >= one.at), len(chosen) - 1)
        near = chosen[max(0, place - CONTEXT) : place + CONTEXT]
        return [f"{'>' if event.t == one.at else ' '} {event.line(since)}" for event in near]


def check(events: Sequence[Event], *, only: Iterable[str] | None = None, leave_out: Iterable[str] = ()) -> Report:
    """Judge a history. `leave_out` is for faults that break what an invariant stands on: say why where you use it."""
    model = Model(events)
    chosen = [name for name in (only or INVARIANTS) if name not in set(leave_out)]
    violations = [one for name in chosen for one in INVARIANTS[name](model)]
    return Report(
        violations=violations,
        operations=_counted(model),
        coverage=sometimes(model),
        checked=tuple(chosen),
        events=events,
    )


def _counted(model: Model) -> Counter[str]:
    counts: Counter[str] = Counter(f"{one.what}.{one.status}" for one in model.operations)
    for kind in ("assign", "handler_start", "handler_end", "outcome", "receipt", "fault", "final_job", "final_event"):
        counts[kind] = len(model.of_kind[kind])
    return +counts
