"""The outbox: an event is committed with the end of its job, for the endpoints that asked for it and no others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from headgate.domain.errors import NotFound, QuotaExceeded, VersionConflict
from headgate.domain.outcomes import Completed
from headgate.domain.tenants import BUILT_IN
from headgate.domain.webhooks import Event
from headgate.store import audit, verbs, webhooks
from headgate.store.connect import Connection
from headgate.store.database import Database
from tests.support.queue import Clock, Queue, links, new_id
from tests.support.waiting import until_async
from tests.support.webhooks import SECRET, Hooks


async def _cancel(queue: Queue, *ids: Any) -> None:
    await verbs.cancel(queue.db, await queue.tenant_no(), list(ids), who="ana", reason="")


async def test_each_end_of_a_job_is_an_event_for_the_endpoints_that_ask_for_it(hooks: Hooks) -> None:
    all_ends = await hooks.create("job.completed", "job.dead", "job.cancelled")
    await hooks.create("job.dead")
    (done,) = await hooks.complete()
    dead = await hooks.kill()
    (queued,) = await hooks.queue.add(1)
    await _cancel(hooks.queue, queued)
    found = [(Event(row["event"]), row["job_id"]) for row in await hooks.rows()]
    assert found == [
        (Event.JOB_COMPLETED, done),
        (Event.JOB_DEAD, dead),
        (Event.JOB_DEAD, dead),
        (Event.JOB_CANCELLED, queued),
    ]
    assert all_ends.secrets == 1


async def test_an_event_says_what_became_of_the_job_and_has_no_payload(hooks: Hooks) -> None:
    await hooks.create("job.dead")
    dead = await hooks.kill("mail.eu")
    ((_, _, _, _, data),) = await hooks.rows()
    said = json.loads(data)
    assert {name: said[name] for name in ("job_id", "topic", "state", "attempt", "max_attempts", "error")} == {
        "job_id": str(dead),
        "topic": "mail.eu",
        "state": "dead",
        "attempt": 1,
        "max_attempts": 1,
        "error": "ValueError: no such customer",
    }
    assert set(said) == {
        *("job_id", "topic", "state", "attempt", "max_attempts", "priority", "error"),
        *("created_at", "started_at", "finished_at"),
    }


async def test_an_event_and_the_end_of_its_job_are_committed_together_or_not_at_all(hooks: Hooks) -> None:
    await hooks.create("job.completed")
    (job_id,) = await hooks.queue.add(1)
    await hooks.queue.claim(1)
    undone = hooks.db.transaction()
    await undone.start()
    await hooks.queue.settle((job_id, 1, Completed()))
    assert len(await hooks.rows()) == 1
    await undone.rollback()
    assert not await hooks.rows()
    await hooks.queue.settle((job_id, 1, Completed()))
    await hooks.queue.settle((job_id, 1, Completed()))  # sent again by its worker
    assert len(await hooks.rows()) == 1


@pytest.mark.parametrize(
    ("topics", "matched"),
    [
        ((), ["mail", "mail.eu", "mail_eu"]),
        (("mail",), ["mail"]),
        (("mail.*",), ["mail.eu"]),
        (("mail_*", "mail.eu"), ["mail.eu", "mail_eu"]),
        (("other*",), []),
    ],
)
async def test_topics_are_matched_by_name_and_by_pattern(
    hooks: Hooks, topics: tuple[str, ...], matched: list[str]
) -> None:
    await hooks.create("job.completed", topics=topics)
    for topic in ("mail", "mail.eu", "mail_eu"):
        await hooks.complete(1, topic)
    assert sorted(json.loads(row["data"])["topic"] for row in await hooks.rows()) == matched


async def test_a_flush_of_several_topics_makes_events_of_those_that_match(hooks: Hooks) -> None:
    await hooks.create("job.completed", topics=("mail",))
    ids = {topic: await hooks.queue.add(3, topic) for topic in ("mail", "video")}
    for topic in ids:
        await hooks.queue.claim(3, topic)
    await hooks.queue.settle(*((job_id, 1, Completed()) for some in ids.values() for job_id in some))
    assert {row["job_id"] for row in await hooks.rows()} == set(ids["mail"])


async def test_another_tenants_endpoint_gets_nothing(hooks: Hooks, instance_database: Database) -> None:
    theirs = Hooks(hooks.db, instance_database, tenant="other")
    foreign = await theirs.create("job.completed", "job.dead", "job.cancelled")
    await hooks.complete()
    await hooks.kill()
    assert not await hooks.rows()
    with pytest.raises(NotFound):
        await hooks.get(foreign.id)
    with pytest.raises(NotFound):
        await hooks.update(foreign.id, description="ours")
    with pytest.raises(NotFound):
        await webhooks.delete(hooks.db, await hooks.tenant_no(), foreign.id, who="ana", reason="")


async def test_a_disabled_or_expired_endpoint_gets_nothing(hooks: Hooks, clock: Clock) -> None:
    await hooks.create("job.completed", enabled=False)
    await hooks.create("job.completed", ttl=timedelta(minutes=1))
    await clock.advance(minutes=1, seconds=1)
    await hooks.complete()
    assert not await hooks.rows()


async def test_an_endpoint_for_named_jobs_gets_those_that_name_it(hooks: Hooks) -> None:
    one = await hooks.create("job.completed", named_only=True)
    await hooks.create("job.completed", named_only=True)
    await hooks.complete()
    (named,) = await hooks.complete(headers={"headgate-webhook": str(one.id)})
    assert [row["job_id"] for row in await hooks.rows()] == [named]


async def test_a_completion_that_is_sent_again_is_no_second_event(hooks: Hooks) -> None:
    """In a flush with others, which are events."""
    await hooks.create()
    first, second = await hooks.queue.add(2)
    await hooks.queue.claim(2)
    await hooks.queue.settle((first, 1, Completed()))
    await hooks.queue.settle((first, 1, Completed()), (second, 1, Completed()))
    assert sorted(row["job_id"] for row in await hooks.rows()) == sorted([first, second])


async def test_a_redriven_job_that_ends_again_is_another_event(hooks: Hooks) -> None:
    await hooks.create("job.dead", "job.completed")
    dead = await hooks.kill()
    await hooks.db.execute("SELECT headgate.redrive_v1($1, $2, '{}', 0, 'ana', '')", await hooks.tenant_no(), [dead])
    claimed = await hooks.queue.claim(1)
    await hooks.queue.settle((dead, claimed.epochs[0], Completed()))
    assert [Event(row["event"]) for row in await hooks.rows()] == [Event.JOB_DEAD, Event.JOB_COMPLETED]


async def test_a_flush_that_concerns_no_endpoint_looks_once_and_reads_no_job_again(
    hooks: Hooks, instance_database: Database
) -> None:
    """What webhooks cost everyone else: nothing per job."""

    async def calls_of_a_flush() -> int:
        ids = await hooks.queue.add(50)
        await hooks.queue.claim(50)
        async with hooks.db.transaction():
            await hooks.queue.settle(*((job_id, 1, Completed()) for job_id in ids))
            calls: int = await hooks.db.fetchval(
                """SELECT coalesce(sum(calls), 0)::int FROM pg_stat_xact_user_functions
                    WHERE schemaname = 'headgate' AND funcname = 'webhook_ended_v1'"""
            )
        return calls

    await hooks.db.execute("SET track_functions = 'pl'")
    assert await calls_of_a_flush() == 0
    await Hooks(hooks.db, instance_database, tenant="other").create()
    assert await calls_of_a_flush() == 0
    await hooks.create(topics=("video",))
    assert await calls_of_a_flush() == 1
    assert not await hooks.rows()


# ---------------------------------------------------------------------- endpoints


async def test_every_change_is_audited_without_secrets(hooks: Hooks, db: Connection) -> None:
    made = await hooks.create("job.completed")
    tenant_no = await hooks.tenant_no()
    await webhooks.ping(db, tenant_no, made.id, who="ana")
    changed = await hooks.update(made.id, topics=("mail",), enabled=False)
    assert (changed.version, changed.spec.enabled, changed.disabled_reason) == (2, False, "by ana")
    rotated = await webhooks.rotate_secret(
        db, tenant_no, made.id, secret="whsec_second", overlap=timedelta(hours=1), who="ana", reason="leaked"
    )
    assert rotated.secrets == 2
    await webhooks.delete(db, tenant_no, made.id, who="ana", reason="moved")
    entries = await audit.entries(db, tenant_no)
    assert [(entry.verb, entry.reason) for entry in entries] == [
        ("delete_webhook", "moved"),
        ("rotate_webhook_secret", "leaked"),
        ("update_webhook", ""),
        ("test_webhook", ""),
        ("create_webhook", ""),
    ]
    assert "whsec_" not in str(entries)
    with pytest.raises(NotFound):
        await hooks.get(made.id)


async def test_an_update_for_another_version_changes_nothing(hooks: Hooks) -> None:
    made = await hooks.create("job.completed")
    with pytest.raises(VersionConflict):
        await webhooks.update(
            hooks.db, await hooks.tenant_no(), made.id, {"description": "x"}, expected=7, who="ana", reason=""
        )
    assert (await hooks.get(made.id)).version == 1


async def test_the_previous_secret_signs_until_its_overlap_is_over(hooks: Hooks, clock: Clock) -> None:
    made = await hooks.create("job.completed")
    tenant_no = await hooks.tenant_no()
    for number in range(7):
        await webhooks.rotate_secret(
            hooks.db, tenant_no, made.id, secret=f"whsec_{number}", overlap=timedelta(hours=1), who="ana", reason=""
        )
        await clock.advance(seconds=1)
    await hooks.complete(2)
    first, second = await hooks.claim(2)
    assert first.secrets == ("whsec_6", "whsec_5", "whsec_4", "whsec_3", "whsec_2")
    assert SECRET not in second.secrets
    await clock.advance(hours=2)
    (again, _) = await hooks.claim(2)
    assert again.secrets == ("whsec_6",)


async def test_a_later_rotation_does_not_prolong_the_time_of_an_older_secret(hooks: Hooks, clock: Clock) -> None:
    made = await hooks.create("job.completed")
    for secret, hours in (("whsec_1", 1), ("whsec_2", 24)):
        await webhooks.rotate_secret(
            *(hooks.db, await hooks.tenant_no(), made.id),
            secret=secret,
            overlap=timedelta(hours=hours),
            who="ana",
            reason="",
        )
        await clock.advance(minutes=30)
    await hooks.complete()
    (delivery,) = await hooks.claim(1)
    assert delivery.secrets == ("whsec_2", "whsec_1")


async def test_a_tenant_has_a_bounded_number_of_endpoints(hooks: Hooks) -> None:
    await hooks.create()
    await hooks.db.execute(
        """INSERT INTO headgate.webhooks (tenant_no, id, url, events, topics, patterns, created_at, created_by,
                                          changed_at, changed_by)
           SELECT w.tenant_no, gen_random_uuid(), w.url, w.events, w.topics, w.patterns, w.created_at, '',
                  w.changed_at, ''
             FROM headgate.webhooks w, generate_series(2, $1)""",
        BUILT_IN["max_webhooks"],
    )
    with pytest.raises(QuotaExceeded, match="has 100 of 100"):
        await hooks.create()


async def _after_the_first(
    hooks: Hooks, database: str, change: Callable[[Connection], Coroutine[Any, Any, object]]
) -> BaseException | object:
    """Make a change twice at the same moment; what became of the second one."""
    async with links(database, 2) as (one, two):
        async with one.transaction():
            await change(one)
            second = asyncio.create_task(change(two))

            async def waits() -> bool:
                found = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1"
                return second.done() or bool(await hooks.db.fetchval(found, two.get_server_pid()))

            await until_async(waits, "the second one waits")
        (answer,) = await asyncio.gather(second, return_exceptions=True)
        return answer


async def test_two_creates_at_the_same_moment_do_not_exceed_the_quota(hooks: Hooks, database: str) -> None:
    tenant_no, spec = await hooks.tenant_no(), (await hooks.create()).spec
    await hooks.db.execute("UPDATE headgate.tenants SET max_webhooks = 2 WHERE tenant_no = $1", tenant_no)

    async def create(db: Connection) -> object:
        return await webhooks.create(db, tenant_no, new_id(), spec, secret=SECRET, who="ana")

    assert isinstance(await _after_the_first(hooks, database, create), QuotaExceeded)


async def test_of_two_updates_of_one_version_at_the_same_moment_the_second_is_refused(
    hooks: Hooks, database: str
) -> None:
    tenant_no, made = await hooks.tenant_no(), await hooks.create()
    words = iter(("first", "second"))

    async def update(db: Connection) -> object:
        changes = {"description": next(words)}
        return await webhooks.update(db, tenant_no, made.id, changes, expected=1, who="ana", reason="")

    assert isinstance(await _after_the_first(hooks, database, update), VersionConflict)
    found = await hooks.get(made.id)
    assert (found.spec.description, found.version) == ("first", 2)


async def test_readers_of_the_database_cannot_see_secrets(db: Connection) -> None:
    granted = """SELECT has_table_privilege('headgate_reader', 'headgate.webhook_secrets', 'SELECT'),
                        has_table_privilege('headgate_reader', 'headgate.webhooks', 'SELECT')"""
    exists = await db.fetchval("SELECT to_regrole('headgate_reader') IS NOT NULL")
    undone = db.transaction()
    await undone.start()
    if not exists:
        await db.execute("CREATE ROLE headgate_reader NOLOGIN")
    await db.execute("SELECT headgate.grant_roles_v1()")
    assert tuple(await db.fetchrow(granted) or ()) == (False, True)
    await undone.rollback()


async def test_the_id_of_an_endpoint_is_its_own(hooks: Hooks) -> None:
    assert (await hooks.create()).id != (await hooks.create()).id
    with pytest.raises(NotFound):
        await hooks.get(new_id())
