"""Tokens for some topics: what belongs to other topics of the tenant does not exist for them, however they refer to it.

A real server and real calls. Each refusal is compared, word by word, with that of something that was never there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg
import grpc
import pytest

from headgate import Bound, Headgate, InvalidInput, NotFound, SubmitRefused, Unique
from headgate.domain.errors import HeadgateError
from headgate.sdk.batches import Batch
from headgate.sdk.ids import new_id_maker
from headgate.sdk.options import Prepared
from headgate.store.connect import connect
from headgate.wire import producer_pb2
from tests.support.database import Server
from tests.support.server import ServerProcess
from tests.support.waiting import until_async
from tests.support.wire import Wire, served

OWNER, MAIL, PAY, BOTH = (f"a-token-of-the-{name}" for name in ("owner", "mailer", "payer", "clerk"))
EVERYTHING = ["submit", "work", "read", "operate"]
TOKENS: dict[str, dict[str, object]] = {
    OWNER: {"tenant": "acme", "name": "owner", "scopes": EVERYTHING},
    MAIL: {"tenant": "acme", "name": "mail", "scopes": EVERYTHING, "topics": ["mail"]},
    PAY: {"tenant": "acme", "name": "pay", "scopes": EVERYTHING, "topics": ["pay", "paid"]},
    BOTH: {"tenant": "acme", "name": "both", "scopes": EVERYTHING, "topics": ["mail", "pay", "paid"]},
}
new_id = new_id_maker().next_id
PAID = Bound("paid", b"", Prepared({}))


@dataclass(kw_only=True)
class Office:
    """Clients under the four tokens, and the database behind them."""

    owner: Headgate
    mail: Headgate
    pay: Headgate
    both: Headgate
    db: asyncpg.Connection[asyncpg.Record]


@pytest.fixture(scope="module")
def office_server(
    postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, str]]:
    folder = tmp_path_factory.mktemp("topics-apart")
    (folder / "tokens.json").write_text(json.dumps(TOKENS))
    (folder / "tokens.json").chmod(0o600)
    with served(postgres, template, folder, "--tokens", str(folder / "tokens.json")) as server:
        yield server


@pytest.fixture
async def office(office_server: tuple[ServerProcess, str]) -> AsyncIterator[Office]:
    server, dsn = office_server
    async with AsyncExitStack() as stack:
        owner, mail, pay, both = [
            await stack.enter_async_context(Headgate(server.address, token=token)) for token in (OWNER, MAIL, PAY, BOTH)
        ]
        db = await connect(dsn, application_name="office")
        stack.push_async_callback(db.close)
        yield Office(owner=owner, mail=mail, pay=pay, both=both, db=db)


@pytest.fixture
async def wire(office_server: tuple[ServerProcess, str]) -> AsyncIterator[Wire]:
    async with Wire(office_server[0].address, token=OWNER) as connection:
        yield connection


async def refusal(call: Any, *hidden: UUID) -> tuple[type[HeadgateError], str, str]:
    """How a call is refused: the kind, the server's code, and the words without the ids it was about."""
    with pytest.raises(HeadgateError) as caught:
        await call
    words = str(caught.value)
    for number, one in enumerate(hidden):
        words = words.replace(str(one), f"ID{number}")
    return type(caught.value), getattr(caught.value, "reported", ""), words


async def test_a_key_of_another_topic_is_neither_taken_nor_revealed(office: Office) -> None:
    first = await office.pay.submit("pay", b"order", key="order-7")
    # Whatever the body: a job of their own, and nothing about the other.
    squatted = await office.mail.submit("mail", b"order", key="order-8")
    for body in (b"order", b"another"):
        mine = await office.mail.submit("mail", body, key=f"order-7-{body.decode()}")
        assert mine.created
    same = await office.mail.submit("mail", b"order", key="order-7")
    assert same.created
    assert same.id != first.id
    theirs = await office.pay.submit("pay", b"order", key="order-8")
    assert theirs.created
    assert theirs.id != squatted.id
    assert (await office.pay.submit("pay", b"order", key="order-7")).id == first.id


@pytest.mark.parametrize("state", ["live", "finished"])
async def test_a_parent_of_another_topic_is_none(office: Office, state: str) -> None:
    older = new_id()
    hidden = (await office.pay.submit("pay", delay=3600)).id
    if state == "finished":
        await office.pay.admin.jobs.cancel(hidden)
    mine = (await office.mail.submit("mail", delay=3600)).id
    held = Unique(key=f"held-{state}")
    await office.mail.submit("mail", delay=3600, unique=held)
    before = await office.db.fetchval("SELECT count(*) FROM headgate.job_dependencies")
    for more in ({}, {"unique": held}, {"key": f"k-{state}"}, {"needs": "ended", "on_parent_failure": "block"}):
        nowhere = UUID(int=hidden.int ^ 1)  # in the same place of any order
        # Alone, and between others: also which of several ids is named must not tell.
        for listed in ((), (mine,), (older,), (new_id(),)):
            said = [
                await refusal(office.mail.submit("mail", depends_on=[*listed, one], **more), *listed, one)
                for one in (hidden, nowhere)
            ]
            assert said[0] == said[1]
            assert said[0][:2] == (SubmitRefused, "not_found")
    assert await office.db.fetchval("SELECT count(*) FROM headgate.job_dependencies") == before
    assert not await office.db.fetchval(
        "SELECT coalesce(bool_or(flags & 32 <> 0), false) FROM headgate.jobs WHERE id = $1", hidden
    )
    # Who may see both may tie them together, and who has no such limit.
    for client in (office.both, office.owner):
        assert (await client.submit("mail", depends_on=[hidden, mine], needs="ended")).created


async def test_parents_in_one_call_and_in_frames_before_it_are_found(office: Office) -> None:
    parents = [await office.mail.submit("mail") for _ in range(3)]
    together = await asyncio.gather(*(office.mail.submit("mail", depends_on=[one]) for one in parents))
    assert all(one.created for one in together)
    chain = [new_id() for _ in range(4)]
    submits = [
        office.mail.submit("mail", id=one, depends_on=chain[:place], delay=3600) for place, one in enumerate(chain)
    ]
    assert all(handle.created for handle in await asyncio.gather(*submits))  # they share frames


async def test_a_batch_of_another_topic_is_none(office: Office) -> None:
    with_callback = await office.pay.batch(on_done=PAID).open()
    without = await office.pay.batch("salaries").open()
    of_nobody = await office.owner.batch("all").open()
    sealed = await office.pay.batch("sealed").open()
    await sealed.seal()
    before = await office.db.fetchval("SELECT count(*) FROM headgate.batch_jobs")
    held = Unique(key="batch")
    await office.mail.submit("mail", delay=3600, unique=held)
    for batch in (with_callback, without, of_nobody, sealed):
        nowhere = new_id()
        for said in (
            [await refusal(office.mail.batch_status(one), one) for one in (batch.id, nowhere)],
            [await refusal(office.mail.seal_batch(one), one) for one in (batch.id, nowhere)],
            [await refusal(office.mail.submit("mail", batch=one), one) for one in (batch.id, nowhere)],
            [await refusal(office.mail.submit("mail", batch=one, unique=held), one) for one in (batch.id, nowhere)],
        ):
            assert said[0] == said[1]
            assert said[0][0] in (NotFound, SubmitRefused)
        # Opening it once more shows nothing of it.
        with pytest.raises(InvalidInput, match="opened before with another name, need or topic"):
            await office.mail.batch(id=batch.id).open()
        assert (await office.owner.batch_status(batch.id)).total == 0
    assert await office.db.fetchval("SELECT count(*) FROM headgate.batch_jobs") == before
    # It is not damaged: its callback is free when its members are done.
    member = await with_callback.submit_to("pay", delay=3600)
    await with_callback.seal()
    await office.pay.admin.jobs.cancel(member.id)

    async def is_free() -> bool:
        status = await office.pay.batch_status(with_callback.id)
        return (status.total, status.callback_state) == (1, "pending")

    await until_async(is_free, "the callback is free")


async def test_a_batch_belongs_to_its_callbacks_topic_or_to_the_topics_of_who_opened_it(office: Office) -> None:
    async def sees(client: Headgate, batch: Batch) -> bool:
        try:
            await client.batch_status(batch.id)
        except NotFound:
            return False
        return True

    async def seen_by(batch: Batch) -> str:
        clients = {"owner": office.owner, "mail": office.mail, "pay": office.pay, "both": office.both}
        return " ".join([name for name, client in clients.items() if await sees(client, batch)])

    assert await seen_by(await office.owner.batch(on_done=PAID).open()) == "owner pay both"
    assert await seen_by(await office.owner.batch().open()) == "owner"
    assert await seen_by(await office.pay.batch().open()) == "owner pay both"
    assert await seen_by(await office.both.batch().open()) == "owner both"
    async with office.mail.batch() as batch:  # a life of its own: opened, joined, sealed and read
        await batch.submit_to("mail")
    assert await seen_by(batch) == "owner mail both"
    assert (await batch.status()).total == 1


async def test_a_job_with_a_name_over_the_quota_is_refused_and_its_neighbours_are_not(
    office: Office, wire: Wire
) -> None:
    await office.owner.submit("mail")
    quota = await office.db.fetchval("SELECT count(*) FROM headgate.topics")
    await office.db.execute("UPDATE headgate.tenants SET max_topics = $1", quota)
    try:
        said = await refusal(office.owner.submit("one-too-many"))
        assert said[:2] == (SubmitRefused, "quota_exceeded")
        assert f"quota of {quota}" in said[2]
        assert "max_topics" in said[2]
        # In one frame and in one call with jobs of topics that exist.
        together = ["mail", "new-1", "mail", "new-2", "mail"]
        answers = await asyncio.gather(
            *(office.owner.submit(topic, priority=1) for topic in together), return_exceptions=True
        )
        assert [isinstance(answer, SubmitRefused) for answer in answers] == [False, True, False, True, False]
        jobs = [producer_pb2.NewJob(topic=topic) for topic in together]
        batch = await wire.call("SubmitBatch", producer_pb2.SubmitBatchRequest(jobs=jobs))
        codes = [receipt.error.code for receipt in batch.receipts]
        assert codes == ["", "quota_exceeded", "", "quota_exceeded", ""]
        atomic = await wire.refused("SubmitBatch", producer_pb2.SubmitBatchRequest(jobs=jobs, atomic=True))
        assert "jobs[1]" in atomic.details
        ended = await wire.refused("Submit", producer_pb2.SubmitRequest(job=jobs[1]))
        assert (ended.status, ended.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "quota_exceeded")
        assert await office.db.fetchval("SELECT count(*) FROM headgate.topics") == quota
    finally:
        await office.db.execute("UPDATE headgate.tenants SET max_topics = DEFAULT")
    assert (await office.owner.submit("one-too-many")).created
