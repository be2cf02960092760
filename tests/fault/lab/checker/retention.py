"""I21: nothing is removed before its time, and what is removed leaves nothing behind.

No run lasts as long as anything is kept for (a day at least), so within one only a discard removes a job.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.fault.lab.checker.model import FAIL, Model, Violation, ok


def kept_for_its_time_and_no_orphans(model: Model) -> Iterator[Violation]:
    """Ended jobs, timelines and keys are there; no row of a side table belongs to a job that is gone."""
    for job, receipts in model.receipts_of.items():
        ended = [one for one in receipts if one.code == "applied"]
        if ended and job not in model.row_of and not model.gone(job):
            yield Violation(
                invariant="I21",
                text=f"job {job}, of which an outcome was accepted, was removed",
                at=ended[-1].t,
                job=job,
            )
    kept = {(event["tenant"], event["topic"], event["key"]) for event in model.of_kind["final_key"]}
    for one in model.asked("submit"):
        if "key" not in one.data or not ok(one) or model.gone(one.jobs[0]):
            continue
        if (one.tenant, one.data.get("topic"), one.data["key"]) not in kept:
            yield Violation(
                invariant="I21", text=f"key {one.data['key']} of {one.tenant} was forgotten within its window",
                at=one.t_end, job=one.jobs[0],
            )  # fmt: skip
    told = {event["job_id"] for event in model.of_kind["final_event"]}
    for job, verbs in model.verbs_of.items():
        done = [one for one in verbs if one.status != FAIL and one.answer.get("changed") and one.what != "discard"]
        if done and job in model.row_of and job not in told:
            yield Violation(
                invariant="I21", text=f"{done[0].what} of job {job} was answered, and its timeline does not tell",
                at=done[0].t_end, job=job,
            )  # fmt: skip
    for event in model.of_kind["final_orphans"]:
        if event["n"]:
            yield Violation(
                invariant="I21",
                text=f"{event['n']} rows of {event['table_name']} belong to no job, such as {event['example']}",
                job=event["example"] or "",
            )
