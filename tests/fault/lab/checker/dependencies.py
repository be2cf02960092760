"""I19: no child starts before its parents ended as required; none stays blocked when nothing it waits for is alive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.fault.lab.checker.model import COMPLETED, REDRIVEN, Model, Row, Violation
from tests.fault.lab.history import Event

SUCCEEDED, ENDED = 0, 1
CANCEL, IGNORE, BLOCK = 0, 1, 2
BLOCKED = 4
WAITS = 256
"""The flag of a job that waits for others; without it, a blocked job waits for its limit."""


def children_wait_for_their_parents(model: Model) -> Iterator[Violation]:
    """By the dependencies as stored, and by what was asked for in submits that were acknowledged."""
    parents: defaultdict[str, list[Event]] = defaultdict(list)
    for event in model.of_kind["final_dependency"]:
        parents[event["child_id"]].append(event)
    for child, links in parents.items():
        row = model.row_of.get(child)
        if row is None:
            continue
        for link in links:
            yield from _too_early(model, row, link)
        yield from _in_vain(model, row, links)
    for one in model.asked("submit"):
        if not one.data.get("depends_on") or one.status != "ok" or not one.answer.get("created"):
            continue
        child = one.jobs[0]
        stored = {link["parent_id"] for link in parents[child]}
        for parent in set(map(str, one.data["depends_on"])) - stored:
            if child in model.row_of and not model.gone(parent):
                yield Violation(
                    invariant="I19", text=f"job {child} was submitted to wait for {parent}, and does not",
                    at=one.t_end, job=child,
                )  # fmt: skip
    for event in model.of_kind["final_left"]:
        if event["checks"]:
            yield Violation(
                invariant="I19", text=f"{event['checks']} children were noted as free perhaps, and not looked at"
            )


def _too_early(model: Model, row: Row, link: Event) -> Iterator[Violation]:
    claims = model.claims_of.get(row.job, ())
    # A child that was cancelled and redriven manually waits for no parent.
    if not claims or any(fact.kind == REDRIVEN for fact in model.facts_of.get(row.job, ())):
        return
    parent = link["parent_id"]
    above = model.row_of.get(parent)
    if above is None:
        return  # discarded, or the batch of a callback
    ended = model.first_end.get(parent)
    if (above.live and parent not in model.verbs_of) or (
        ended is not None and ended > claims[0].at + model.skew_us and claims[0].epoch % 1024 == 1
    ):
        yield Violation(
            invariant="I19", text=f"job {row.job} was claimed before its parent {parent} had ended", job=row.job
        )
    completed = above.state == COMPLETED or any(one.kind == "completed" for one in model.said_of.get(parent, ()))
    if link["needs"] == SUCCEEDED and link["on_failure"] != IGNORE and not completed:
        yield Violation(
            invariant="I19",
            text=f"job {row.job} ran, which needs a success of {parent}; that never had one",
            job=row.job,
        )


def _in_vain(model: Model, row: Row, links: list[Event]) -> Iterator[Violation]:
    if not (row.live and row.state == BLOCKED and row.flags & WAITS):
        return
    alive = [one for one in links if (above := model.row_of.get(one["parent_id"])) is not None and above.live]
    patient = [one for one in links if one["on_failure"] == BLOCK and one["needs"] == SUCCEEDED]
    if not alive and not patient:
        yield Violation(
            invariant="I19", text=f"job {row.job} is blocked, and none of the {len(links)} it waits for is alive",
            job=row.job,
        )  # fmt: skip
