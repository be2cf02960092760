"""The writer of outcomes whose jobs were not given to their sender, with a database that is away or refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from headgate.dispatch.delivery import Answer
from headgate.dispatch.outcome_writes import OutcomeWrite
from headgate.dispatch.outcomes import OutcomeWriter, unmatched_rest
from headgate.domain.errors import HeadgateError, InternalError, StoreError
from headgate.domain.states import Receipt


class Jobs:
    """A store of jobs whose topics are known. `errors`: what a look-up of a tenant's jobs raises."""

    def __init__(self, topics: Mapping[UUID, str], errors: Mapping[int, Exception]) -> None:
        self.topics, self.errors = topics, errors
        self.looked_up: list[tuple[int, int]] = []  # tenant and number of jobs
        self.settled: list[UUID] = []

    def new_outcomes(self) -> Any:
        def add_completed(_tenant_no: int, ids: Sequence[UUID], *_: object) -> range:
            self.settled += ids
            return range(len(ids))

        return SimpleNamespace(add_completed=add_completed, topics_with_capacity=set(), unblocks=False, webhooks=False)

    async def topics_of(self, tenant_no: int, ids: Sequence[UUID]) -> Mapping[UUID, str]:
        self.looked_up.append((tenant_no, len(ids)))
        if tenant_no in self.errors:
            raise self.errors[tenant_no]
        return self.topics

    async def settle(self, _rows: object) -> Mapping[int, Any]:
        return {}


async def _written(
    jobs: Jobs, *sent: tuple[int, list[UUID], frozenset[str] | None]
) -> list[Mapping[int, Answer] | HeadgateError]:
    """The answers to writes (tenant, jobs, permitted topics) that are written in one flush."""
    writer = OutcomeWriter(
        jobs, on_returned=lambda *_: None, on_final=lambda *_: None, awaited=lambda: False, unmatched=True
    )
    answers: dict[int, Mapping[int, Answer] | HeadgateError] = {}
    for number, (tenant_no, ids, topics) in enumerate(sent):
        keep = lambda answer, number=number: answers.setdefault(number, answer)  # noqa: E731
        epochs, results = [1] * len(ids), [b""] * len(ids)
        writer.put(OutcomeWrite(tenant_no, ids, epochs, results, (), done=keep, failed=keep, topics=topics))
    writer.writer.stop()
    await asyncio.wait_for(writer.writer.run(), 60)
    assert writer.writer.flushes == 1
    return [answers[number] for number in range(len(sent))]


async def test_restricted_tokens_cost_one_look_up_a_tenant_and_flush() -> None:
    mail, pay, free = ([uuid4(), uuid4()] for _ in range(3))
    jobs = Jobs(dict.fromkeys(mail, "mail") | dict.fromkeys(pay, "pay"), {})
    answers = await _written(
        jobs,
        (1, mail, frozenset({"mail"})),
        (1, pay, frozenset({"mail"})),
        (1, [mail[0], pay[0]], frozenset({"pay"})),
        (2, [mail[1]], frozenset({"mail"})),
        (3, free, None),
    )
    assert jobs.looked_up == [(1, 6), (2, 1)]
    unknown = [
        {row for row, told in answer.items() if getattr(told, "receipt", None) is Receipt.UNKNOWN}
        for answer in answers
        if isinstance(answer, Mapping)
    ]
    assert unknown == [set(), {0, 1}, {0}, set(), set()]
    assert sorted(jobs.settled) == sorted([*mail, pay[0], mail[1], *free])


@pytest.mark.parametrize("error", [StoreError("no such column"), ZeroDivisionError("a bug")])
async def test_a_look_up_that_fails_fails_only_the_restricted_outcomes_of_its_tenant(error: Exception) -> None:
    ids = [uuid4() for _ in range(4)]
    jobs = Jobs(dict.fromkeys(ids, "mail"), {1: error})
    mail = frozenset({"mail"})
    first, second, other, free = await _written(
        jobs, (1, [ids[0]], mail), (1, [ids[1]], mail), (2, [ids[2]], mail), (1, [ids[3]], None)
    )
    assert isinstance(first, StoreError | InternalError)
    assert first is second
    assert (other, free) == ({}, {})
    assert sorted(jobs.settled) == sorted(ids[2:])


def test_the_writer_rests_as_long_as_a_large_flush_took_but_not_as_long_as_an_outage() -> None:
    assert unmatched_rest(1_000, 0.2) == 0.2
    assert unmatched_rest(1_000, 3_600.0) == 0.5
    assert unmatched_rest(10, 0.2) == 0.0
