"""I17: never two live jobs of one unique key, and an answer under a key names a job that had it, with its body."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

from tests.fault.lab.checker.model import FINAL, NEVER, REDRIVEN, Model, Operation, Row, Violation, ok

REPLACE = "replace"
Life = tuple[int, int, str]
"""From, until, job."""


def one_live_job_per_unique_key(model: Model) -> Iterator[Violation]:
    """Lives by the stored times; the answers of submits with `unique` against them."""
    keys: dict[str, tuple[str, str, str]] = {}
    lives: defaultdict[tuple[str, str, str], list[Life]] = defaultdict(list)
    for event in model.of_kind["final_unique"]:
        row = model.row_of.get(event["job_id"])
        if row is not None:
            keys[row.job] = (row.tenant, row.topic, event["key"])
            lives[keys[row.job]] += lives_of(model, row)
    for (tenant, topic, key), found in lives.items():
        for (_, ended, one), (began, _, other) in combinations(sorted(found), 2):
            if one != other and began < ended - model.skew_us:
                yield Violation(
                    invariant="I17",
                    text=f"{tenant}/{topic} key {key!r}: job {other} came to life while job {one}, which ended "
                    f"{(ended - began) / 1e6:.3f} s later, had the key",
                    job=other,
                )
    for submit in model.asked("submit"):
        if "unique" in submit.data and ok(submit):
            yield from _answer(model, submit, keys)


def lives_of(model: Model, row: Row) -> Iterator[Life]:
    """From its creation to its first end, and from each redrive to the next. An end that nothing tells is left out."""
    facts = model.facts_of.get(row.job, ())
    ends = sorted([fact.at for fact in facts if fact.state in FINAL and fact.kind != REDRIVEN]
                  + ([row.finished] if row.finished is not None else []))  # fmt: skip
    begins = [row.created, *(fact.at for fact in facts if fact.kind == REDRIVEN)]
    for place, begin in enumerate(begins):
        until = begins[place + 1] if place + 1 < len(begins) else NEVER
        end = min((at for at in ends if begin <= at < until), default=None)
        if end is not None:
            yield begin, end, row.job
        elif row.live and until == NEVER:
            yield begin, NEVER, row.job


def _answer(model: Model, one: Operation, keys: dict[str, tuple[str, str, str]]) -> Iterator[Violation]:
    job, asked = one.jobs[0], (one.tenant, str(one.data["topic"]), str(one.data["unique"]))
    row = model.row_of.get(job)
    if row is None:
        return  # discarded; else I1 has it
    if keys.get(job) != asked:
        yield Violation(
            invariant="I17", text=f"a submit with the unique key {asked} was answered with job {job}, which has "
            f"{keys.get(job)}", at=one.t_end, job=job,
        )  # fmt: skip
    ended = model.first_end.get(job, NEVER)
    redriven = any(fact.kind == REDRIVEN for fact in model.facts_of.get(job, ()))
    if not one.answer.get("created") and ended < one.w - model.skew_us and not redriven:
        yield Violation(
            invariant="I17",
            text=f"a submit with the unique key {asked[2]!r} was answered with job {job}, which had ended "
            f"{(one.w - ended) / 1e6:.3f} s before it was asked",
            at=one.t_end, job=job,
        )  # fmt: skip
    if one.data.get("on_conflict") == REPLACE:
        yield from _body(model, one, row)


def _body(model: Model, one: Operation, row: Row) -> Iterator[Violation]:
    """A job that had not begun when its replacement was acknowledged runs with that body, or with a later one."""
    claims = model.claims_of.get(row.job, ())
    if (
        not claims
        or claims[0].epoch % 1024 != 1
        or claims[0].at < one.w_end + model.skew_us
        or row.job in model.verbs_of
    ):
        return
    later = {one.data["body"], *(other.data["body"] for other in _rivals(model, one))}
    if row.payload.get("b") not in later:
        yield Violation(
            invariant="I17",
            text=f"job {row.job} was replaced with body {one.data['body']} before it began, and has "
            f"{row.payload.get('b')}",
            at=one.t_end, job=row.job,
        )  # fmt: skip


def _rivals(model: Model, one: Operation) -> Sequence[Operation]:
    return [
        other
        for other in model.asked("submit")
        if other.data.get("unique") == one.data["unique"]
        and (other.tenant, other.data["topic"]) == (one.tenant, one.data["topic"])
        and other.data.get("on_conflict") == REPLACE
        and other.status != "fail"
        and other.w_end >= one.w
    ]
