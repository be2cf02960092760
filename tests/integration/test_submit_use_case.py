"""Submitting as every transport asks for it: permission, indexes, refusals of single jobs, atomicity. No gRPC."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from headgate.control.submit import SubmitResult, Submits
from headgate.control.tenant_limits import TenantLimits
from headgate.domain import limits
from headgate.domain.errors import Conflict, HeadgateError, InvalidInput, TooLarge
from headgate.domain.identity import PermissionDenied
from headgate.domain.states import State, SubmitReceipt
from headgate.domain.tenants import TenantRateLimited
from headgate.domain.topic_limits import Rate
from tests.support.dispatch_waits import SOON
from tests.support.dispatching import Instance
from tests.support.drafts import Draft, PlainDrafts, caller_of, read_draft
from tests.support.queue import new_id

CREATED, DUPLICATE, CONFLICT, REFUSED = (
    SubmitReceipt.CREATED,
    SubmitReceipt.DUPLICATE,
    SubmitReceipt.CONFLICT,
    SubmitReceipt.REFUSED,
)


def submits(one: Instance, refused: Counter[str] | None = None) -> Submits[Any, Any]:
    return Submits(one.store, one.submitter, make_id=new_id, refused=refused)


async def framed(
    one: Instance, plain: PlainDrafts | None, *jobs: Draft, topics: tuple[str, ...] = ()
) -> dict[int, SubmitResult]:
    """The answer to one frame, by index."""
    use, answer = submits(one), asyncio.get_running_loop().create_future()
    await use.frame(
        caller_of(one.tenant, *topics),
        plain,
        jobs,
        read_draft,
        use.stream_account(),
        done=answer.set_result,
        failed=answer.set_exception,
    )
    results: list[SubmitResult] = await asyncio.wait_for(answer, SOON.total_seconds())
    return {result.index: result for result in results}


def ids(count: int) -> list[bytes]:
    return [new_id().bytes for _ in range(count)]


class Counted(TenantLimits):
    """A tenant whose rate permits a number of jobs."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def take(self, tenant: str, count: int) -> None:
        if count > self.left:
            raise TenantRateLimited(tenant, rate=Rate(count=1, period=timedelta(seconds=1)), retry_after_ms=1_000)
        self.left -= count


async def test_the_rate_of_a_tenant_counts_every_way_to_submit_and_a_refusal_stores_nothing(one: Instance) -> None:
    caller, limited = caller_of(one.tenant), Counted(6)
    use: Submits[Any, Any] = Submits(one.store, one.submitter, make_id=new_id, tenants=limited)
    answered = asyncio.get_running_loop().create_future()

    async def by_frame() -> None:
        plain = PlainDrafts(ids=ids(2), payloads=[b"a", b"b"])
        sent = {"done": answered.set_result, "failed": answered.set_exception}
        await use.frame(caller, plain, [Draft()], read_draft, use.stream_account(), **sent)

    def by_call() -> Awaitable[object]:
        return use.one(caller, Draft(), read_draft, plain=False)

    def by_calls() -> Awaitable[object]:
        return use.many(caller, [Draft(), Draft()], read_draft, atomic=False)

    async with asyncio.timeout(SOON.total_seconds()):
        await by_call()
        await by_calls()
        await by_frame()
        await answered
        assert limited.left == 0
        for submit in (by_call, by_calls, by_frame):
            with pytest.raises(TenantRateLimited):
                await submit()
    assert (await one.states())[State.PENDING] == 6


async def test_a_frame_is_answered_with_what_was_not_created_under_the_id_it_was_sent_with(one: Instance) -> None:
    first = ids(2)
    assert await framed(one, PlainDrafts(ids=first, payloads=[b"a", b"b"])) == {}
    again = PlainDrafts(ids=[*first, *ids(1)], payloads=[b"a", b"other", b"c"], new_id=False)
    own = new_id().bytes
    answer = await framed(one, again, Draft(id=own), Draft(), Draft(options={"bad": True}))
    assert {index: result.receipt for index, result in answer.items()} == {
        0: DUPLICATE,
        1: CONFLICT,
        4: CREATED,  # its id was made here
        5: REFUSED,
    }
    assert answer[1].job_id == first[1]
    assert isinstance(answer[1].error, Conflict)
    assert len(answer[4].job_id) == 16
    assert isinstance(answer[5].error, InvalidInput)
    assert (await one.states())[State.PENDING] == 5


async def test_plain_jobs_that_are_refused_do_not_stop_the_others_of_their_frame(one: Instance) -> None:
    foreign = PlainDrafts(topic="secret", ids=ids(2), payloads=[b"", b""])
    answer = await framed(one, foreign, Draft(id=new_id().bytes), topics=("mail",))
    assert {index: (result.receipt, type(result.error)) for index, result in answer.items()} == {
        0: (REFUSED, PermissionDenied),
        1: (REFUSED, PermissionDenied),
    }
    assert (await one.states())[State.PENDING] == 1
    with pytest.raises(PermissionDenied, match="secret"):
        await framed(one, foreign, topics=("mail",))  # alone, the frame is refused as a whole


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        (None, "carries no jobs"),
        (PlainDrafts(ids=[], payloads=[]), "plain.ids: is empty"),
        (PlainDrafts(ids=[b"x" * 15], payloads=[b""]), "plain.ids: must each be the 16 bytes"),
        (PlainDrafts(ids=[bytes(16)], payloads=[b""]), "plain.ids: must each be the 16 bytes"),
        (PlainDrafts(ids=ids(1), payloads=[]), "0 payloads for 1 ids"),
        (PlainDrafts(ids=ids(1), payloads=[b""], priorities=[1, 2]), "2 priorities for 1 ids"),
        (PlainDrafts(ids=ids(1), payloads=[b""], topic=""), "topic"),
        (PlainDrafts(ids=ids(1), payloads=[bytes(limits.PAYLOAD_MAX_BYTES + 1)]), "payload"),
        (PlainDrafts(ids=[b""] * (limits.SUBMIT_FLUSH_MAX_ROWS + 1), payloads=[]), "plain.ids"),
    ],
)
async def test_a_frame_of_nothing_but_nonsense_is_refused_as_a_whole(
    one: Instance, plain: PlainDrafts | None, says: str
) -> None:
    with pytest.raises(HeadgateError, match=says):
        await framed(one, plain)
    assert not (await one.states()).total()


@pytest.mark.parametrize("plain", [True, False])
async def test_one_job_is_submitted_by_the_same_rules_with_and_without_options(one: Instance, plain: bool) -> None:
    use, job = submits(one), Draft(id=new_id().bytes, new_id=False)
    first = await use.one(caller_of(one.tenant), job, read_draft, plain=plain)
    assert first == SubmitResult(0, job.id)
    again = await use.one(caller_of(one.tenant), job, read_draft, plain=plain)
    assert (again.receipt, again.job_id) == (DUPLICATE, job.id)
    other = await use.one(
        caller_of(one.tenant), Draft(id=job.id, payload=b"other", new_id=False), read_draft, plain=plain
    )
    assert (other.receipt, other.job_id) == (CONFLICT, job.id)
    with pytest.raises(PermissionDenied, match="mail"):
        await use.one(caller_of(one.tenant, "sms"), job, read_draft, plain=plain)
    with pytest.raises(TooLarge):
        await use.one(
            caller_of(one.tenant),
            Draft(id=job.id, payload=bytes(limits.PAYLOAD_MAX_BYTES + 1)),
            read_draft,
            plain=plain,
        )
    with pytest.raises(InvalidInput, match="id"):
        await use.one(caller_of(one.tenant), Draft(id=bytes(16)), read_draft, plain=plain)
    assert (await one.states()).total() == 1


async def test_a_batch_has_a_result_for_each_job_in_order(one: Instance) -> None:
    known = new_id().bytes
    jobs = [
        Draft(),
        Draft(options={"bad": True}),
        Draft(topic="secret"),
        Draft(id=known, options={"delay": timedelta(hours=1)}),
    ]
    results = await submits(one).many(caller_of(one.tenant, "mail"), jobs, read_draft, atomic=False)
    assert [(result.index, result.receipt) for result in results] == [
        (0, CREATED),
        (1, REFUSED),
        (2, REFUSED),
        (3, CREATED),
    ]
    assert isinstance(results[2].error, PermissionDenied)
    assert results[3].job_id == known
    assert UUID(bytes=results[0].job_id).version == 7
    assert (await one.states()).total() == 2


async def _bad(_one: Instance) -> list[Draft]:
    return [Draft(), Draft(options={"bad": True})]


async def _foreign(_one: Instance) -> list[Draft]:
    return [Draft(), Draft(topic="secret")]


async def _conflict(one: Instance) -> list[Draft]:
    (there,) = await one.submit()
    return [Draft(), Draft(id=there.bytes, payload=b"another", new_id=False)]


@pytest.mark.parametrize(
    ("jobs", "error", "says"),
    [
        (_bad, InvalidInput, r"jobs\[1\].*nothing"),
        (_foreign, InvalidInput, r"jobs\[1\]"),
        (_conflict, Conflict, r"jobs\[1\]"),
    ],
)
async def test_an_atomic_batch_with_one_bad_job_submits_nothing(
    one: Instance, jobs: Callable[[Instance], Any], error: type[HeadgateError], says: str
) -> None:
    drafts = await jobs(one)
    before, refused = (await one.states()).total(), Counter[str]()
    with pytest.raises(error, match=says):
        await submits(one, refused).many(caller_of(one.tenant, "mail"), drafts, read_draft, atomic=True)
    assert (await one.states()).total() == before
    assert refused == {error.code: len(drafts)}, "each job of the batch is counted once"


async def test_each_refused_job_of_a_batch_is_counted_once(one: Instance) -> None:
    refused = Counter[str]()
    drafts = [*await _bad(one), *await _foreign(one), *await _conflict(one)]
    await submits(one, refused).many(caller_of(one.tenant, "mail"), drafts, read_draft, atomic=False)
    assert refused == {"invalid_input": 1, "permission_denied": 1, "conflict": 1}


async def test_a_batch_that_is_empty_or_too_large_is_refused(one: Instance) -> None:
    use, caller = submits(one), caller_of(one.tenant)
    with pytest.raises(InvalidInput, match="is empty"):
        await use.many(caller, [], read_draft, atomic=False)
    with pytest.raises(TooLarge):
        await use.many(caller, [Draft()] * (limits.SUBMIT_BATCH_MAX + 1), read_draft, atomic=False)
    with pytest.raises(TooLarge, match="atomic"):
        await use.many(caller, [Draft()] * (limits.SUBMIT_FLUSH_MAX_ROWS + 1), read_draft, atomic=True)


async def test_a_payload_over_the_limit_of_the_server_is_refused_with_the_field_and_the_limit(
    stepped: Instance,
) -> None:
    use = Submits(stepped.store, stepped.submitter, make_id=new_id, payload_max=10)
    caller = caller_of(stepped.tenant)
    for plain in (True, False):
        with pytest.raises(TooLarge, match=r"payload: 11 bytes is over the limit of 10 bytes; .*payload_max") as caught:
            await use.one(caller, Draft(id=new_id().bytes, payload=b"x" * 11), read_draft, plain=plain)
        assert (caught.value.field, caught.value.limit) == ("payload", 10)
    with pytest.raises(TooLarge, match="payload: 11 bytes"):
        await use.frame(
            caller,
            PlainDrafts(ids=ids(1), payloads=[b"x" * 11]),
            (),
            read_draft,
            use.stream_account(),
            done=lambda _: None,
            failed=lambda _: None,
        )
