"""I4 and I5: only the newest epoch settles a job, and what is settled stays settled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.fault.lab.checker.model import COMPLETED, ENDED_BY, FINAL, NEVER, REDRIVEN, Model, Said, Violation
from tests.fault.lab.checker.starts import nothing_starts_after_its_end

_ACCEPTED = frozenset({"applied", "duplicate"})


def only_the_newest_epoch_settles(model: Model) -> Iterator[Violation]:
    """An outcome first sent after a newer epoch was claimed is never accepted; what is stored is what was accepted."""
    for job, receipts in model.receipts_of.items():
        first: dict[tuple[int, str, str], int] = {}
        for said in model.said_of.get(job, ()):
            first.setdefault((said.epoch, said.kind, said.proc), said.w)
        completed: set[tuple[int, str]] = set()
        for receipt in receipts:
            if receipt.code not in _ACCEPTED:
                continue
            sent = first.get((receipt.epoch, receipt.kind, receipt.proc), receipt.w)
            for claim in model.claims_of.get(job, ()):
                if claim.epoch > receipt.epoch and claim.at < sent - model.skew_us:
                    yield _violation(
                        f"job {job}: the outcome of epoch {receipt.epoch} by {receipt.proc} was answered "
                        f"{receipt.code} although epoch {claim.epoch} had been claimed before it was sent",
                        receipt,
                    )
            if receipt.kind == "completed":
                completed.add((receipt.epoch, receipt.result))
        redrives = sum(verb.what == "redrive" and verb.status != "fail" for verb in model.verbs_of.get(job, ()))
        if len(completed) > 1 + redrives:
            yield _violation(f"job {job} was completed {len(completed)} times: {sorted(completed)}", receipts[-1])
    yield from _stored_results(model)
    yield from _declared_in_vain(model)


def _declared_in_vain(model: Model) -> Iterator[Violation]:
    """A worker that comes back and declares a lease which is another's by now gets that in the greeting's answer."""
    answers = {(event.proc, event["stream"], event.t): event for event in model.of_kind["hello_ack"]}
    for hello in model.of_kind["hello"]:
        answer = next(
            (one for (proc, stream, t), one in answers.items()
             if (proc, stream) == (hello.proc, hello["stream"]) and t > hello.t),
            None,
        )  # fmt: skip
        if answer is None:
            continue
        lost = {(job, epoch) for job, epoch in answer["lost"]}
        for job, epoch in hello["held"]:
            newer = [one.epoch for one in model.claims_of.get(job, ()) if one.at < hello.w - model.skew_us]
            if max(newer, default=0) > epoch and (job, epoch) not in lost:
                yield Violation(
                    invariant="I4",
                    text=f"job {job}: {hello.proc} declared epoch {epoch} when epoch {max(newer)} had been claimed, "
                    "and was not told that it is lost",
                    at=hello.t, job=job,
                )  # fmt: skip


def _stored_results(model: Model) -> Iterator[Violation]:
    for row in model.rows:
        if row.state != COMPLETED:
            continue
        said = [one for one in model.said_of.get(row.job, ()) if one.epoch == row.epoch and one.kind == "completed"]
        if not said:
            yield Violation(
                invariant="I4", text=f"job {row.job} is completed by epoch {row.epoch}, which nobody has completed",
                job=row.job,
            )  # fmt: skip
        elif (row.result or "") not in {one.result for one in said}:
            yield Violation(
                invariant="I4", text=f"job {row.job}: {row.result!r} is stored, {said[0].result!r} was accepted",
                at=said[0].t, job=row.job,
            )  # fmt: skip


def one_terminal_state(model: Model) -> Iterator[Violation]:
    """Each job is in one row; nothing is claimed or begun after its end without a redrive; answers match the row."""
    yield from nothing_starts_after_its_end(model)
    for job, count in Counter(row.job for row in model.rows).items():
        if count > 1:
            yield Violation(invariant="I5", text=f"job {job} is there {count} times", job=job)
    for job, claims in model.claims_of.items():
        facts = model.facts_of.get(job, ())
        ends = [fact.at for fact in facts if fact.state in FINAL and (fact.kind in ENDED_BY or fact.kind == 7)]
        redriven = [fact.at for fact in facts if fact.kind == REDRIVEN]
        for claim in claims:
            ended = max((at for at in ends if at < claim.at), default=0)
            if ended and not any(ended <= at <= claim.at for at in redriven):
                yield Violation(
                    invariant="I5", text=f"job {job}: epoch {claim.epoch} was claimed after the job had ended", job=job
                )
    for job, receipts in model.receipts_of.items():
        yield from _acknowledged_ends(model, job, receipts)


def _acknowledged_ends(model: Model, job: str, receipts: list[Said]) -> Iterator[Violation]:
    done = [one for one in receipts if one.kind == "completed" and one.code in _ACCEPTED]
    if not done:
        return
    verbs = [verb for verb in model.verbs_of.get(job, ()) if verb.what != "cancel" and verb.status != "fail"]
    row = model.row_of.get(job)
    for receipt in done:
        undone = min((verb.w for verb in verbs if verb.w_end >= receipt.w), default=NEVER)
        early = any(verb.what == "redrive" for verb in verbs)
        for assign in model.assigns_of.get(job, ()):
            if assign.epoch > receipt.epoch and receipt.w < assign.w < undone and not early:
                yield _violation(
                    f"job {job}: epoch {assign.epoch} was handed out after the completion of epoch {receipt.epoch} had "
                    "been acknowledged",
                    receipt,
                    "I5",
                )
        if row is not None and not verbs and (row.state != COMPLETED or row.epoch != receipt.epoch):
            yield _violation(
                f"job {job}: the completion of epoch {receipt.epoch} was acknowledged, but the job ended in state "
                f"{row.state} with epoch {row.epoch}",
                receipt,
                "I5",
            )


def _violation(text: str, receipt: Said, invariant: str = "I4") -> Violation:
    return Violation(invariant=invariant, text=text, at=receipt.t, job=receipt.job)
