"""Submits inside a caller's transaction at every isolation level: the same id, key or unique key is one job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal
from uuid import UUID

import asyncpg
import pytest

from headgate.domain.dependencies import Unique
from headgate.domain.outcomes import Completed, ErrorInfo, Failed
from headgate.store import verbs
from headgate.store.connect import Connection
from headgate.store.errors import translate
from tests.support.queue import Queue, links, new_id

Level = Literal["read_committed", "repeatable_read", "serializable"]
LEVELS: tuple[Level, ...] = ("read_committed", "repeatable_read", "serializable")
SNAPSHOT_LEVELS = LEVELS[1:]
DEAD = Failed(error=ErrorInfo(type="Fatal"), permanent=True)
COUNT = "SELECT (SELECT count(*) FROM headgate.jobs) + (SELECT count(*) FROM headgate.archive)"


@pytest.fixture
async def queue(database: str, db: Connection) -> AsyncIterator[Queue]:
    """What others do, on a connection of their own; `db` is the application."""
    async with links(database, 1) as (link,):
        queue = Queue(link, tenant="default")
        await queue.topic()
        yield queue


async def sql(db: Connection, **options: Any) -> UUID:
    casts = {"id": "uuid", "key": "text", "unique_key": "text", "on_conflict": "text"}
    more = "".join(f", {name} => ${n}::{casts[name]}" for n, name in enumerate(options, 1))
    made: UUID = await db.fetchval(f"SELECT headgate.submit('mail', 'x'::bytea{more})", *options.values())
    return made


async def snapshot(db: Connection) -> None:
    await db.fetchval("SELECT count(*) FROM headgate.topics")


async def complete(queue: Queue, job_id: UUID, how: Completed | Failed = Completed()) -> None:  # noqa: B008 - a value
    claimed = await queue.claim()
    await queue.settle((job_id, dict(zip(claimed.ids, claimed.epochs, strict=True))[job_id], how))


def refused(caught: pytest.ExceptionInfo[asyncpg.PostgresError]) -> bool:
    """In words that say what to do."""
    assert caught.value.sqlstate == "25000"
    assert caught.value.hint == "headgate code: isolation_level"
    assert "leave the id out" in str(caught.value)
    assert "READ COMMITTED" in str(caught.value)
    return True


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("made", ["before the snapshot", "after it"])
async def test_an_id_that_completes_after_the_snapshot_is_not_made_again(
    queue: Queue, db: Connection, level: Level, made: str
) -> None:
    """Neither an id that the snapshot shows alive, nor one that it does not show at all."""
    job = queue.job()
    if made == "before the snapshot":
        await queue.submit(job)
    transaction = db.transaction(isolation=level)
    await transaction.start()
    await snapshot(db)
    if made == "after it":
        await queue.submit(job)
    await complete(queue, job.id)
    if level in SNAPSHOT_LEVELS and made == "after it":
        with pytest.raises(asyncpg.PostgresError) as caught:
            await sql(db, id=job.id)
        assert refused(caught)
        await transaction.rollback()
    else:
        assert await sql(db, id=job.id) == job.id
        await transaction.commit()
    assert await db.fetchval(COUNT) == 1
    assert not (await queue.claim()).ids


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fate", ["alive", "completed", "discarded"])
async def test_an_id_that_the_snapshot_knows_is_a_repeat_at_every_level(
    queue: Queue, db: Connection, level: Level, fate: str
) -> None:
    job = queue.job()
    await queue.submit(job)
    if fate != "alive":
        await complete(queue, job.id, DEAD if fate == "discarded" else Completed())
    async with db.transaction(isolation=level):
        await snapshot(db)
        if fate == "discarded" and level in SNAPSHOT_LEVELS:  # after the snapshot: this transaction came before it
            await verbs.discard(queue.db, await queue.tenant_no(), [job.id])
        assert await sql(db, id=job.id) == job.id
    assert await db.fetchval(COUNT) == (0 if fate == "discarded" and level in SNAPSHOT_LEVELS else 1)


@pytest.mark.parametrize("level", SNAPSHOT_LEVELS)
async def test_another_body_under_an_id_of_the_snapshot_is_a_conflict(
    queue: Queue, db: Connection, level: Level
) -> None:
    job = queue.job(payload=b"another")
    await queue.submit(job)
    with pytest.raises(asyncpg.UniqueViolationError):
        async with db.transaction(isolation=level):
            await sql(db, id=job.id)


@pytest.mark.parametrize("level", LEVELS)
async def test_a_new_id_is_refused_if_its_history_is_unknown_and_accepted_otherwise(
    queue: Queue, db: Connection, level: Level
) -> None:
    transaction = db.transaction(isolation=level)
    await transaction.start()
    job_id = new_id()
    if level in SNAPSHOT_LEVELS:
        with pytest.raises(asyncpg.PostgresError) as caught:
            await sql(db, id=job_id)
        assert refused(caught)
        await transaction.rollback()
        async with db.transaction(isolation=level):  # the way out: neither needs an id
            await sql(db)
            await sql(db, key="once")
    else:
        assert await sql(db, id=job_id) == job_id
        await transaction.commit()
    assert len((await queue.claim()).ids) == (2 if level in SNAPSHOT_LEVELS else 1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("ended", [False, True])
async def test_a_key_used_after_the_snapshot_is_found_by_the_retry(
    queue: Queue, db: Connection, level: Level, ended: bool
) -> None:
    transaction = db.transaction(isolation=level)
    await transaction.start()
    await snapshot(db)
    theirs = queue.job(key="once")
    await queue.submit(theirs)
    if ended:
        await complete(queue, theirs.id)
    if level in SNAPSHOT_LEVELS:
        with pytest.raises(asyncpg.SerializationError) as caught:
            await sql(db, key="once")
        assert translate(caught.value, writing=True).code == "store_busy"
        await transaction.rollback()
        async with db.transaction(isolation=level):
            assert await sql(db, key="once") == theirs.id
    else:
        assert await sql(db, key="once") == theirs.id
        await transaction.commit()
    assert await db.fetchval(COUNT) == 1


@pytest.mark.parametrize("level", LEVELS)
async def test_a_key_of_the_snapshot_is_a_repeat_also_with_an_unknown_id(
    queue: Queue, db: Connection, level: Level
) -> None:
    theirs = queue.job(key="once")
    await queue.submit(theirs)
    async with db.transaction(isolation=level):
        await snapshot(db)
        await complete(queue, theirs.id)
        assert await sql(db, key="once", id=new_id()) == theirs.id
    assert await db.fetchval(COUNT) == 1


@pytest.mark.parametrize("level", SNAPSHOT_LEVELS)
async def test_two_transactions_with_one_key_make_one_job(database: str, db: Connection, level: Level) -> None:
    """Both began before either submitted: the second gets an error that says to try again, and then finds the job."""
    async with links(database, 2) as (one, two):
        await Queue(one, tenant="default").topic()
        first, second = one.transaction(isolation=level), two.transaction(isolation=level)
        await first.start()
        await second.start()
        await snapshot(one)
        await snapshot(two)
        made = await sql(one, key="once")
        await first.commit()
        with pytest.raises(asyncpg.SerializationError):
            await sql(two, key="once")
        await second.rollback()
        async with two.transaction(isolation=level):
            assert await sql(two, key="once") == made
    assert await db.fetchval(COUNT) == 1


@pytest.mark.parametrize("level", LEVELS)
async def test_a_unique_key_is_taken_at_read_committed_only(queue: Queue, db: Connection, level: Level) -> None:
    """It is the servers' own call, which they make at READ COMMITTED; at any other level it is refused."""
    await queue.submit(queue.job(unique=Unique(key="u")))
    application = Queue(db, tenant="default")
    await application.topic()
    job = application.job(unique=Unique(key="u"))
    if level == "read_committed":
        async with db.transaction():
            await application.submit(job)
    else:
        with pytest.raises(Exception, match="must run at READ COMMITTED"):
            async with db.transaction(isolation=level):
                await application.submit(job)
    assert await queue.db.fetchval(COUNT) == 1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("on_conflict", ["keep", "replace", "reschedule"])
async def test_an_application_takes_a_unique_key_at_read_committed_or_is_told_to(
    queue: Queue, db: Connection, level: Level, on_conflict: str
) -> None:
    """In one snapshot, a job that has ended since would hold its key, and one that was made since would not."""
    transaction = db.transaction(isolation=level)
    await transaction.start()
    await snapshot(db)
    theirs = queue.job(unique=Unique(key="u"))
    await queue.submit(theirs)
    if level in SNAPSHOT_LEVELS:
        with pytest.raises(asyncpg.PostgresError, match=r"unique_key, .* need READ COMMITTED") as caught:
            await sql(db, unique_key="u", on_conflict=on_conflict)
        assert (caught.value.sqlstate, caught.value.hint) == ("25000", "headgate code: isolation_level")
        await transaction.rollback()
    else:
        assert await sql(db, unique_key="u", on_conflict=on_conflict) == theirs.id
        await transaction.commit()
    assert await db.fetchval("SELECT count(*) FROM headgate.jobs") == 1
