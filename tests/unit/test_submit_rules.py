"""Submits of many jobs: what is counted, how parts are put together, and what is refused first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest

from headgate.control.admin import Admin
from headgate.control.submit import Submits
from headgate.domain import limits
from headgate.domain.errors import InvalidInput, OutcomeUnknown, PayloadMismatch, QuotaExceeded, StoreUnavailable
from headgate.domain.identity import Identity, Scope
from headgate.domain.jobs import SubmitAnswer
from headgate.domain.rate_limits import RateClass
from headgate.domain.states import SubmitReceipt
from headgate.domain.topic_sets import TopicSet
from headgate.domain.views import Status
from headgate.sdk.ids import new_id_maker

IDS = [new_id_maker().next_id() for _ in range(5)]
CALLER = Identity(tenant="acme", subject="ana", scopes=frozenset({Scope.ADMIN}))
OLDER = SubmitAnswer(receipt=SubmitReceipt.DUPLICATE, job_id=IDS[0])


class Rows:
    """Rows by their numbers."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = list(numbers)
        self.payloads = [b""] * len(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def pick(self, indexes: Sequence[int]) -> Rows:
        return Rows([self.numbers[index] for index in indexes])


def submits_of(submit: AsyncMock | None = None, **store: Any) -> Any:
    known = {"refusals": AsyncMock(return_value={}), "checks_payloads": Mock(return_value=False)}
    known["fill"] = AsyncMock(side_effect=lambda good: Rows(range(len(good))))
    queue = MagicMock(submit=submit or AsyncMock(return_value={}))
    return Submits(Mock(**(known | store)), queue, make_id=Mock(), rates=Mock(), tenants=Mock())


def jobs(count: int) -> list[Any]:
    return [SimpleNamespace(id=IDS[at].bytes, topic="mail", payload=b"{}", new_id=False) for at in range(count)]


def read(job: Any, **_: object) -> Any:
    at = [one.bytes for one in IDS].index(job.id)
    return SimpleNamespace(id=IDS[at], topic=job.topic, payload=job.payload)


async def test_a_batch_counts_each_of_its_jobs() -> None:
    submits = submits_of()
    await submits.many(CALLER, jobs(3), read, atomic=False)
    submits._rates.take.assert_called_once_with(CALLER, RateClass.SUBMIT, 3)
    submits._tenants.take.assert_called_once_with("acme", 3)


async def test_answers_of_later_parts_belong_to_later_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SUBMIT_FLUSH_MAX_ROWS", 2)

    async def submit(part: Rows, **_: object) -> dict[int, SubmitAnswer]:
        return {part.numbers.index(3): OLDER} if 3 in part.numbers else {}

    found = await submits_of(AsyncMock(side_effect=submit)).many(CALLER, jobs(5), read, atomic=False)
    assert [one.index for one in found] == [0, 1, 2, 3, 4]
    assert [one.receipt for one in found].index(SubmitReceipt.DUPLICATE) == 3
    assert found[3].job_id == IDS[0].bytes


@pytest.mark.parametrize(("failing", "raised"), [({0}, OutcomeUnknown), ({0, 1, 2}, StoreUnavailable)])
async def test_a_batch_of_which_a_part_was_written_is_not_called_unwritten(
    monkeypatch: pytest.MonkeyPatch, failing: set[int], raised: type[Exception]
) -> None:
    monkeypatch.setattr(limits, "SUBMIT_FLUSH_MAX_ROWS", 2)

    async def submit(part: Rows, **_: object) -> dict[int, SubmitAnswer]:
        if part.numbers[0] // 2 in failing:
            raise StoreUnavailable("gone")
        return {}

    with pytest.raises(raised):
        await submits_of(AsyncMock(side_effect=submit)).many(CALLER, jobs(5), read, atomic=False)


async def test_jobs_over_a_quota_and_jobs_that_do_not_fit_their_schema_are_all_refused() -> None:
    quota = QuotaExceeded("the topic", quota=1, column="max_topics", hint="use another one")
    submits = submits_of(refusals=AsyncMock(return_value={0: quota}), checks_payloads=Mock(return_value=True))
    mismatch = PayloadMismatch("mail", path="", problem="is empty")
    submits.payloads = Mock(mismatches=AsyncMock(return_value={2: mismatch}))
    found = await submits.many(CALLER, jobs(3), read, atomic=False)
    assert [one.error for one in found] == [quota, None, mismatch]


@pytest.mark.parametrize(("index", "refused"), [(0, False), (1, True)])
async def test_only_a_priority_that_was_sent_can_be_unset(index: int, refused: bool) -> None:
    submits = submits_of(fill_plain=AsyncMock())
    plain: Any = SimpleNamespace(
        topic="mail", ids=[IDS[0].bytes], payloads=[b"{}"], priorities=[5], unset_priorities=[index], new_id=False
    )
    if refused:
        with pytest.raises(InvalidInput, match="has index 1, and there are 1 priorities"):
            await submits._fill_plain(CALLER, plain, None)
    else:
        await submits._fill_plain(CALLER, plain, None)


async def test_a_status_names_no_handled_topic_that_the_token_does_not_permit() -> None:
    now = datetime(2026, 7, 1, tzinfo=UTC)
    known: dict[str, Any] = dict.fromkeys(Status.__dataclass_fields__)
    status = Status(**known | {"now": now, "handled": frozenset({"mail", "pay"}), "topics": [], "pauses": []})
    store = Mock(status=AsyncMock(return_value=status), tenant_no=AsyncMock(return_value=1))
    presence = Mock(topics=Mock(return_value=frozenset({"bank"})))
    others = {name: Mock() for name in ("gate", "wake", "announce", "endings", "retention", "check_schema")}
    admin = Admin(store=store, presence=presence, **others)
    narrow = Identity(tenant="acme", subject="ana", scopes=CALLER.scopes, topics=TopicSet.of("mail"))
    assert (await admin.status(narrow)).handled == {"mail"}
    assert (await admin.status(CALLER)).handled == {"mail", "pay", "bank"}
