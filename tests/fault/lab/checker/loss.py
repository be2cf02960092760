"""I1: what was acknowledged is there; what is there was asked for."""

from __future__ import annotations

from collections.abc import Iterator

from tests.fault.lab.checker.model import Model, Operation, Violation, ok


def nothing_acknowledged_is_lost(model: Model) -> Iterator[Violation]:
    """Every job of an answered submit is in the final tables or may have been discarded; no other job is."""
    for one in model.asked("submit", "submit_many", "batch", "trigger"):
        for job in acknowledged(one):
            if job not in model.row_of and not model.gone(job):
                yield Violation(
                    invariant="I1", text=f"{one.what} {one.op} was acknowledged as job {job}, which is not there",
                    at=one.t_end, job=job,
                )  # fmt: skip
    asked: dict[int, Operation] = {}
    failed: set[int] = set()
    for one in model.asked("submit", "submit_many", "batch"):
        for body in bodies(one):
            if one.status != "fail":
                asked[body] = one
            else:
                failed.add(body)
    for row in model.rows:
        number = row.payload.get("b")
        if row.payload.get("schedule") or number is None or number in asked:
            continue
        why = "of a submit that was answered as certainly not done" if number in failed else "that nobody has submitted"
        yield Violation(
            invariant="I1", text=f"there is a job {row.job} of {row.tenant}/{row.topic}, {why}", job=row.job
        )


def acknowledged(one: Operation) -> list[str]:
    """The jobs this operation was answered with. Of a batch that broke off, those stored before."""
    if one.what == "batch":
        return [str(job) for job in one.answer.get("jobs", ())]
    if not ok(one):
        return []
    return [str(job) for job in one.answer["jobs"]] if one.what == "submit_many" else one.jobs


def bodies(one: Operation) -> list[int]:
    """The numbers of the bodies it carried."""
    return list(one.data["bodies"]) if "bodies" in one.data else [one.data["body"]]
