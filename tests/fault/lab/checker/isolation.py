"""I14: nothing of one tenant ever reaches another."""

from __future__ import annotations

from collections.abc import Iterator

from tests.fault.lab.checker.model import Model, Violation, ok


def tenants_are_apart(model: Model) -> Iterator[Violation]:
    """Jobs handed to workers, and jobs seen in answers, belong to the asker's tenant, as their own payloads say."""
    owner = {row.job: str(row.payload.get("tenant") or row.tenant) for row in model.rows}
    for row in model.rows:
        if owner[row.job] != row.tenant:
            yield Violation(
                invariant="I14", text=f"job {row.job}, submitted by {owner[row.job]}, is stored under {row.tenant}",
                job=row.job,
            )  # fmt: skip
    for assign in model.assigns:
        if owner.get(assign.job, assign.tenant) != assign.tenant:
            yield Violation(
                invariant="I14",
                text=f"job {assign.job} of {owner[assign.job]} was handed to {assign.proc} of {assign.tenant}",
                at=assign.t, job=assign.job,
            )  # fmt: skip
    for one in model.asked("get", "list"):
        if not ok(one):
            continue
        for job, tenant, _ in one.answer.get("jobs", ()):
            if tenant != one.tenant or owner.get(job, tenant) != one.tenant:
                yield Violation(
                    invariant="I14", text=f"{one.tenant} was shown job {job} of {owner.get(job, tenant)}",
                    at=one.t_end, job=job,
                )  # fmt: skip
