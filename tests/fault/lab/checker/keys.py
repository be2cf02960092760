"""I10: one job per key, and the same answer to everyone who asks under it; one job per submitted id and body."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.fault.lab.checker.model import Model, Row, Violation, ok


def one_job_per_key(model: Model) -> Iterator[Violation]:
    """No window of a key ends within a run, so a key has one job for all of it. A body is carried by one job."""
    answers: defaultdict[tuple[str, str, str, str], set[str]] = defaultdict(set)
    for one in model.asked("submit"):
        if ok(one):
            if "key" in one.data:  # within its topic
                answers[one.tenant, str(one.data.get("topic")), "key", str(one.data["key"])].update(one.jobs)
            if "id" in one.data:
                answers[one.tenant, "", "id", str(one.data["id"])].update(one.jobs)
    for (tenant, topic, name, value), jobs in answers.items():
        if len(jobs) > 1:
            yield Violation(
                invariant="I10",
                text=f"{name} {value} of {tenant} {topic} was answered with {len(jobs)} jobs: {sorted(jobs)}",
                job=min(jobs),
            )
    rows: defaultdict[object, list[Row]] = defaultdict(list)
    for row in model.rows:
        if "schedule" not in row.payload and "b" in row.payload:
            rows[row.payload["b"]].append(row)
    for body, made in rows.items():
        if len({row.job for row in made}) > 1:
            yield Violation(
                invariant="I10",
                text=f"body {body} was submitted as one job and became {len(made)}: {sorted(row.job for row in made)}",
                job=made[0].job,
            )
