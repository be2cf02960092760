"""I9: nothing starts before its time; I22: nor long after it. Both for delayed jobs and for retries.

A job that is due is claimed within milliseconds, and by the next tick of a server, a second later, if a wake was lost.
Lateness (I22) is judged where nothing else explains it: nothing broken for a while, no pause of it, free slots for its
tenant, and no limit, key or verb that could have held it back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tests.fault.lab.checker.model import ENDED_BY, FAIL, NEVER, REDRIVEN, Claim, Model, Violation, ok
from tests.fault.lab.checker.pauses import Target, covers, target_of

ROUNDING_US: Final = 1_000
TICK_US: Final = 1_000_000
MACHINE_US: Final = 2_000_000
"""What a machine with other things to do may add to a tick."""
LATE_US: Final = TICK_US + MACHINE_US
BEFORE_US: Final = 5_000_000
"""A fault that has ended so long before has no part in it any more: streams are open again, backlogs are gone."""
RESUMED_US: Final = TICK_US
"""An instance that did not resume itself reads the end of a pause by its next tick."""


def not_before_its_time(model: Model) -> Iterator[Violation]:
    """A delay counts from the asking at the earliest; a retry's time is what its failure has stored."""
    for one in model.asked("submit"):
        delay = float(one.data.get("delay", 0))
        if not delay or not ok(one) or not one.answer.get("created", True):
            continue
        if any(fact.kind == REDRIVEN for fact in model.facts_of.get(one.jobs[0], ())):
            continue  # cancelled and redriven before it was due: now it is
        due = one.w + round(delay * 1e6)
        for claim in model.claims_of.get(one.jobs[0], ())[:1]:
            if claim.epoch % 1024 == 1 and claim.at < due - model.skew_us:
                yield _early(claim.job, claim.epoch, due - claim.at, one.t)
    for job, facts in model.facts_of.items():
        claims = model.claims_of.get(job, ())
        for fact in facts:
            if fact.run_at is None:
                continue
            after = next((claim for claim in claims if claim.epoch == fact.epoch + 1), None)
            # A redrive in between counts from the start.
            anew = any(later.at > fact.at and later.epoch == fact.epoch and later.kind == REDRIVEN for later in facts)
            if after is not None and not anew and after.at < fact.run_at - ROUNDING_US:
                yield _early(job, after.epoch, fact.run_at - after.at, 0)


def soon_after_its_time(model: Model) -> Iterator[Violation]:
    """By the stored time of the claim. The delay of a job counts from the answer to its submit at the latest."""
    for claim, due in _judged(model):
        late = claim.at - due
        if late > LATE_US + model.skew_us:
            yield Violation(
                invariant="I22",
                text=f"job {claim.job} of {claim.tenant}/{claim.topic}, epoch {claim.epoch}, was claimed "
                f"{late / 1e6:.3f} s after its time, with free slots and nothing broken",
                job=claim.job,
            )


def lateness_judged(model: Model) -> int:
    """How many claims of jobs that had waited for their time could be judged."""
    return sum(1 for _ in _judged(model))


def _judged(model: Model) -> Iterator[tuple[Claim, int]]:
    """Claims whose jobs were due at a known time, when nothing held them back but the servers; and that time."""
    held_back = {
        (one.tenant, str(one.data["topic"])) for one in model.asked("set_topic") if _limits(one.data.get("settings"))
    }
    running = {tenant: _Running(model, tenant) for tenant in model.world.get("tenants", ())}
    slots = model.world.get("slots", {})
    pauses = list(_pauses(model))
    for claim, due in _due(model):
        until = min(claim.at, due + LATE_US)
        if (
            claim.job not in model.verbs_of
            and (claim.tenant, claim.topic) not in held_back
            and model.calm(due, until, margin_us=BEFORE_US)
            and not any(start <= until and end >= due and covers(target, claim) for start, end, target in pauses)
            and running[claim.tenant].most(due, until) <= slots.get(claim.tenant, 0) // 2
        ):
            yield claim, due


def _due(model: Model) -> Iterator[tuple[Claim, int]]:
    for one in model.asked("submit"):
        delay = float(one.data.get("delay", 0))
        if delay and ok(one) and not one.data.keys() & {"key", "id", "unique", "depends_on", "limit_key"}:
            for claim in model.claims_of.get(one.jobs[0], ())[:1]:
                if claim.epoch % 1024 == 1:
                    yield claim, one.w_end + round(delay * 1e6)
    for job, facts in model.facts_of.items():
        # The last word counts: a submit with its unique key may have put a retry off.
        due = {fact.epoch + 1: fact.run_at for fact in sorted(facts, key=lambda fact: fact.at) if fact.run_at}
        for claim in model.claims_of.get(job, ()):
            if (run_at := due.get(claim.epoch)) is not None:
                yield claim, run_at


def _limits(settings: object) -> bool:
    return isinstance(settings, dict) and bool(settings.keys() - {"max_attempts"})


def _pauses(model: Model) -> Iterator[tuple[int, int, Target]]:
    """From when to when each pause may have been in force."""
    resumes = [one for one in model.asked("resume") if ok(one)]
    for pause in model.asked("pause"):
        if pause.status == FAIL:
            continue
        target = target_of(pause)
        ends = [one.w_end for one in resumes if target_of(one) == target and one.w > pause.w]
        end = min(min(ends, default=NEVER), int(pause.data.get("until_us") or NEVER))
        yield pause.w, end + RESUMED_US, target


class _Running:
    """How many jobs of a tenant were claimed and had not ended, at each time."""

    def __init__(self, model: Model, tenant: str) -> None:
        ends = {(fact.job, fact.epoch): fact.at for fact in model.facts if fact.kind in ENDED_BY}
        changes: defaultdict[int, int] = defaultdict(int)
        for claim in model.claims:
            if claim.tenant != tenant:
                continue
            end = ends.get((claim.job, claim.epoch))
            if end is None and (row := model.row_of[claim.job]).epoch == claim.epoch:
                end = row.finished
            changes[claim.at] += 1
            if end is not None:
                changes[end] -= 1
        self._at = sorted(changes)
        self._running: list[int] = []
        running = 0
        for at in self._at:
            running += changes[at]
            self._running.append(running)

    def most(self, since: int, until: int) -> int:
        """The largest number from `since` to just before `until`."""
        first = max(0, bisect_right(self._at, since) - 1)
        return max(self._running[first : bisect_left(self._at, until)], default=0)


def _early(job: str, epoch: int, by_us: int, at: int) -> Violation:
    return Violation(
        invariant="I9",
        text=f"job {job}, epoch {epoch}, was claimed {by_us / 1e6:.3f} s before its time",
        at=at,
        job=job,
    )
