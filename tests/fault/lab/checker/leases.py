"""I2 and I3: one live lease, epochs that grow, attempts that are bounded and end once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from tests.fault.lab.checker.model import (
    COMPLETED,
    ENDED_BY,
    EXPIRED,
    NEVER,
    PAID,
    REDRIVEN,
    REPLACED,
    Assign,
    Fact,
    Model,
    Row,
    Violation,
)
from tests.fault.lab.checker.starts import one_run_at_a_time


def surely_held_until(model: Model, assign: Assign) -> int:
    """Until when, by the database's clock, this worker surely holds the lease it received; renewals only add to it.

    Cut short by whatever may have ended it: its own outcome as soon as that is about to be sent, a cancel, discard or
    redrive as soon as it is asked for, a later greeting under its worker's id that does not declare the job. Where
    servers have a reconnect grace shorter than the lease, and a stream or process of the worker ended after it got the
    job, the connection may have been lost right after the claim.
    """
    end = assign.lease_until
    if any(lost.t > assign.t and lost.w <= end + model.skew_us for lost in model.losses_of.get(assign.proc, ())):
        end -= max(0, model.lease_us - model.grace_us)
    for said in model.said_of.get(assign.job, ()):
        if said.epoch == assign.epoch:
            end = min(end, said.w)
    for hello in model.hellos_of.get(assign.worker, ()) if assign.worker else ():
        if hello.t > assign.t and [assign.job, assign.epoch] not in hello["held"]:
            end = min(end, hello.w)
    for verb in model.verbs_of.get(assign.job, ()):
        if verb.w_end >= assign.w:  # else it was over before
            end = min(end, verb.w)
    return end


def one_live_lease(model: Model) -> Iterator[Violation]:
    """No job is claimed while an earlier claim of it is surely held; no row is leased, and no epoch started, twice."""
    yield from one_run_at_a_time(model)
    yield from _expired_too_soon(model)
    for job, assigns in model.assigns_of.items():
        claimed = {claim.epoch: claim.at for claim in model.claims_of.get(job, ())}
        for assign in assigns:
            held_until = surely_held_until(model, assign) - model.skew_us
            for epoch, at in claimed.items():
                if epoch > assign.epoch and at < held_until:
                    yield Violation(
                        invariant="I2",
                        text=f"job {job}: epoch {epoch} was claimed {(held_until - at) / 1e6:.3f} s before the lease "
                        f"of epoch {assign.epoch}, held by {assign.proc}, could have ended",
                        at=assign.t, job=job,
                    )  # fmt: skip
            for other in assigns:
                # Without a stored time of claim the arrival is the latest it can have been.
                if other.epoch > assign.epoch and other.epoch not in claimed and other.w < held_until:
                    yield Violation(
                        invariant="I2",
                        text=f"job {job}: epoch {other.epoch} reached {other.proc} while epoch {assign.epoch} was "
                        f"surely held by {assign.proc}",
                        at=other.t, job=job,
                    )  # fmt: skip
        holders: dict[int, set[str]] = {}
        for assign in assigns:
            holders.setdefault(assign.epoch, set()).add(assign.proc)
        for epoch, procs in holders.items():
            if len(procs) > 1:
                yield Violation(
                    invariant="I2", text=f"job {job}: epoch {epoch} was handed to {', '.join(sorted(procs))}",
                    at=assigns[0].t, job=job,
                )  # fmt: skip


def _expired_too_soon(model: Model) -> Iterator[Violation]:
    """Leases that expired sooner after their claim than they, or the grace of a lost connection, last at least.

    Both times are stored, so this also holds for a job that never arrived at its worker.
    """
    shortest = min(model.lease_us, model.grace_us)
    for fact in model.facts:
        if fact.kind == EXPIRED and fact.claimed is not None and fact.at < fact.claimed + shortest:
            yield Violation(
                invariant="I2",
                text=f"job {fact.job}: the lease of epoch {fact.epoch} expired {(fact.at - fact.claimed) / 1e6:.3f} s "
                f"after its claim, and lasts {shortest / 1e6:.3f} s at least",
                job=fact.job,
            )


def attempts_are_bounded_and_end_once(model: Model) -> Iterator[Violation]:
    """Epochs grow with time; every epoch ended exactly once; no life has more paid attempts than it may."""
    for job, claims in model.claims_of.items():
        for before, after in pairwise(claims):  # in the order of their times
            if after.epoch <= before.epoch:
                yield Violation(
                    invariant="I3",
                    text=f"job {job}: epoch {after.epoch} was claimed after epoch {before.epoch}",
                    job=job,
                )
    for job, assigns in model.assigns_of.items():
        for assign in assigns:
            if not 1 <= assign.attempt <= assign.max_attempts:
                yield Violation(
                    invariant="I3", text=f"job {job}: attempt {assign.attempt} of {assign.max_attempts} was handed out",
                    at=assign.t, job=job,
                )  # fmt: skip
    for row in model.rows:
        yield from _ends(row, model.facts_of.get(row.job, ()), model.assigns_of.get(row.job, ()))


def _ends(row: Row, facts: Sequence[Fact], assigns: Sequence[Assign]) -> Iterator[Violation]:
    ends: Counter[int] = Counter(fact.epoch for fact in facts if fact.kind in ENDED_BY)
    paid: list[tuple[int, int]] = []  # epoch, when
    lives = sorted(fact.at for fact in facts if fact.kind in (REDRIVEN, REPLACED))  # attempts are counted from 0
    for fact in facts:
        if fact.kind in ENDED_BY and ENDED_BY[fact.kind] in PAID:
            paid.append((fact.epoch, fact.at))
        if fact.kind == REDRIVEN and fact.was == COMPLETED:
            ends[fact.epoch] += 1
            paid.append((fact.epoch, fact.at - 1))
    if row.state == COMPLETED:
        ends[row.epoch] += 1
        paid.append((row.epoch, row.finished or 0))
    newest = row.epoch if not row.live or row.lease_is_over else row.epoch - 1
    for epoch in range(row.epoch - row.epoch % 1024 + 1, newest + 1):  # from the first of its range
        if ends[epoch] != 1:
            yield Violation(
                invariant="I3",
                text=f"job {row.job} ({row.topic}): epoch {epoch} of {row.epoch} has {ends[epoch]} ends instead of one",
                job=row.job,
            )
    known = max((assign.epoch for assign in assigns), default=0)
    if known > row.epoch:
        yield Violation(
            invariant="I3", text=f"job {row.job}: epoch {known} was handed out, the row is at {row.epoch}", job=row.job
        )
    for start, end in pairwise([0, *lives, NEVER]):
        in_life = [epoch for epoch, at in paid if start <= at < end]
        if len(in_life) > row.max_attempts:
            yield Violation(
                invariant="I3",
                text=f"job {row.job} ({row.topic}): {len(in_life)} paid attempts in one life of {row.max_attempts}",
                job=row.job,
            )
    # As counted by the row itself: what this life has paid, and nothing else.
    last = [epoch for epoch, at in paid if at >= (lives[-1] if lives else 0)]
    open_attempt = 1 if row.live and not row.lease_is_over else 0
    cancelled_running = row.state == 7 and facts and facts[-1].kind in (4, 5)
    if not cancelled_running and row.attempt != len(last) + open_attempt:
        yield Violation(
            invariant="I3",
            text=f"job {row.job} ({row.topic}): attempt is {row.attempt}, and {len(last)} paid attempts have ended",
            job=row.job,
        )
