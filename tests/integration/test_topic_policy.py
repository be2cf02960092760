"""The policy of a topic in the database: versions, history, dry runs, schemas at submit, leases."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from headgate.control.submit import SubmitResult, Submits
from headgate.control.topic_policies import TopicPolicies
from headgate.domain.errors import InvalidInput, NotFound, PayloadMismatch, TooLarge, VersionConflict
from headgate.domain.identity import Identity, PermissionDenied, Scope
from headgate.domain.payload_schemas import checked_schema
from headgate.domain.states import State, SubmitReceipt
from headgate.domain.topic_policy import HISTORY_KEPT, AppliedPolicy
from headgate.store.topics import TopicStore
from tests.support.dispatch_waits import SOON
from tests.support.dispatching import Instance
from tests.support.drafts import Draft, PlainDrafts, caller_of, read_draft
from tests.support.queue import new_id

ANA = Identity(tenant="acme", subject="ana", scopes=frozenset(Scope))
SCHEMA = checked_schema({"type": "object", "required": ["to"], "properties": {"to": {"type": "string"}}})
GOOD, BAD = b'{"to": "ada"}', b'{"to": 3}'


def policies(one: Instance) -> TopicPolicies:
    return TopicPolicies(TopicStore(one.store), on_change=lambda no: None)


async def apply(one: Instance, values: Mapping[str, object], topic: str = "mail", **how: Any) -> AppliedPolicy:
    return await policies(one).apply(ANA, topic, values, **how)


# ---------------------------------------------------------------------- versions


async def test_an_apply_is_a_version_and_the_same_again_is_none(stepped: Instance) -> None:
    first = await apply(stepped, {"max_attempts": 3, "max_running": 5}, reason="new gateway")
    assert first.topic is not None
    assert (first.before_version, first.topic.version) == (0, 1)
    assert {(one.setting, one.before, one.after) for one in first.changes} == {
        ("max_attempts", 20, 3),
        ("max_running", None, 5),
    }
    again = await apply(stepped, {"max_attempts": 3, "max_running": 5})
    assert again.topic is not None
    assert (again.changes, again.topic.version) == ([], 1)


async def test_a_dry_run_says_the_same_and_writes_nothing(stepped: Instance) -> None:
    planned = await apply(stepped, {"lease": timedelta(seconds=5)}, dry_run=True)
    assert (planned.topic, planned.before_version, planned.dry_run) == (None, 0, True)
    with pytest.raises(NotFound):
        await TopicStore(stepped.store).get_topic("acme", "mail")
    done = await apply(stepped, {"lease": timedelta(seconds=5)})
    assert done.changes == planned.changes
    await apply(stepped, {"lease": None}, dry_run=True)
    assert (await TopicStore(stepped.store).get_topic("acme", "mail")).version == 1


async def test_of_two_applies_from_one_version_the_second_is_refused(stepped: Instance) -> None:
    await apply(stepped, {"max_attempts": 3})
    await apply(stepped, {"max_attempts": 4}, version=1)
    for dry_run in (False, True):
        with pytest.raises(VersionConflict, match="version 2, not 1"):
            await apply(stepped, {"max_attempts": 5}, version=1, dry_run=dry_run)
    view = await TopicStore(stepped.store).get_topic("acme", "mail")
    assert (view.rules.max_attempts, view.version) == (4, 2)


async def test_many_applies_from_one_version_at_once_make_one_version(one: Instance) -> None:
    await apply(one, {"max_attempts": 1})
    answers = await asyncio.gather(
        *(apply(one, {"max_attempts": 2 + n}, version=1) for n in range(8)), return_exceptions=True
    )
    assert sum(isinstance(answer, AppliedPolicy) for answer in answers) == 1
    assert sum(isinstance(answer, VersionConflict) for answer in answers) == 7


async def test_an_applied_value_wins_over_a_declaration_until_it_is_pruned(stepped: Instance) -> None:
    store = TopicStore(stepped.store)
    await apply(stepped, {"max_attempts": 3, "priority": 7})
    await store.declare_topic("acme", "mail", {"max_attempts": 9}, source="shop", worker="w", actor="token")
    assert (await store.get_topic("acme", "mail")).rules.max_attempts == 3
    pruned = await apply(stepped, {"priority": 7}, prune=True)
    assert pruned.topic is not None
    assert (pruned.topic.rules.max_attempts, pruned.topic.rules.priority) == (9, 7)
    assert [one.setting for one in pruned.changes] == ["max_attempts"]
    kept = await apply(stepped, {}, prune=False)
    assert kept.changes == []


async def test_the_history_says_who_changed_what_and_why_and_is_bounded(stepped: Instance) -> None:
    store = TopicStore(stepped.store)
    await apply(stepped, {"max_attempts": 3}, reason="outage")
    await store.declare_topic("acme", "mail", {"priority": 2}, source="shop", worker="w", actor="token")
    await store.release_topic("acme", "mail", settings=(), actor="ben", reason="over")
    found = await policies(stepped).history(ANA, "mail")
    assert [(one.version, one.verb, one.actor, one.reason) for one in found] == [
        (3, "release_topic", "ben", "over"),
        (2, "declare_topic", "token", ""),
        (1, "apply_topic", "ana", "outage"),
    ]
    assert [dict(one.settings) for one in found] == [{}, {"max_attempts": 3}, {"max_attempts": 3}]
    assert [[change.setting for change in one.changes] for one in found] == [
        ["max_attempts"],
        ["priority"],
        ["max_attempts"],
    ]
    assert [one.version for one in await policies(stepped).history(ANA, "mail", before=3, limit=1)] == [2]
    async with stepped.store.lane("upkeep").use() as db:
        await db.execute("UPDATE headgate.topic_rules SET version = $1", HISTORY_KEPT + 1)
    await apply(stepped, {"max_attempts": 4})
    assert [one.version for one in await policies(stepped).history(ANA, "mail")] == [HISTORY_KEPT + 2, 3]
    with pytest.raises(NotFound):
        await policies(stepped).history(ANA, "unknown")


async def test_an_apply_is_audited_with_what_was_before(stepped: Instance) -> None:
    await apply(stepped, {"max_consumers": 2, "dead_letter_topic": "lost"}, reason="two at once")
    async with stepped.store.lane("upkeep").use() as db:
        verb, target, reason, detail = await db.fetchrow("SELECT verb, target, reason, detail FROM headgate.audit")
    assert (verb, target, reason) == ("apply_topic", "topic mail", "two at once")
    assert '"max_consumers": 2' in detail
    assert '"dead_letter_topic": "lost"' in detail


async def test_a_token_for_some_topics_applies_to_those_only(stepped: Instance) -> None:
    some = caller_of("acme", "mail")
    await policies(stepped).apply(some, "mail", {"max_attempts": 3})
    with pytest.raises(PermissionDenied):
        await policies(stepped).apply(some, "other", {"max_attempts": 3}, dry_run=True)
    with pytest.raises(PermissionDenied):
        await policies(stepped).history(some, "other")


# ---------------------------------------------------------------------- schemas


def submits(one: Instance) -> Submits[Any, Any]:
    return Submits(one.store, one.submitter, make_id=new_id)


async def framed(one: Instance, plain: PlainDrafts | None, *jobs: Draft) -> dict[int, SubmitResult]:
    use, answer = submits(one), asyncio.get_running_loop().create_future()
    caller, account = caller_of(one.tenant), use.stream_account()
    await use.frame(caller, plain, jobs, read_draft, account, done=answer.set_result, failed=answer.set_exception)
    results: list[SubmitResult] = await asyncio.wait_for(answer, SOON.total_seconds())
    return {result.index: result for result in results}


async def test_of_a_frame_only_the_payloads_that_do_not_match_are_refused(one: Instance) -> None:
    await apply(one, {"payload_schema": SCHEMA})
    ids = [new_id().bytes for _ in range(4)]
    plain = PlainDrafts(ids=ids, payloads=[GOOD, BAD, GOOD, b"not JSON"], priorities=[1, 2, 3, 4])
    answer = await framed(one, plain, Draft(payload=BAD), Draft(id=new_id().bytes, payload=GOOD), Draft(topic="other"))
    assert {index: result.receipt for index, result in answer.items() if result.error} == dict.fromkeys(
        (1, 3, 4), SubmitReceipt.REFUSED
    )
    assert isinstance(answer[1].error, PayloadMismatch)
    assert answer[1].error.path == "/to"
    assert (await one.states())[State.PENDING] == 4
    async with one.store.lane("upkeep").use() as db:
        assert [
            row[0] for row in await db.fetch("SELECT priority FROM headgate.jobs WHERE priority > 0 ORDER BY 1")
        ] == [
            1,
            3,
        ]
    refused = await framed(one, PlainDrafts(ids=[new_id().bytes], payloads=[BAD]))
    assert isinstance(refused[0].error, PayloadMismatch)


async def test_unary_submits_and_atomic_batches_are_checked_before_anything_is_stored(one: Instance) -> None:
    await apply(one, {"payload_schema": SCHEMA})
    use, caller = submits(one), caller_of(one.tenant)
    for plain in (True, False):
        with pytest.raises(PayloadMismatch, match="payload/to"):
            await use.one(caller, Draft(id=new_id().bytes, payload=BAD), read_draft, plain=plain)
    with pytest.raises(PayloadMismatch, match=r"jobs\[1\]\.payload/to"):
        await use.many(caller, [Draft(payload=GOOD), Draft(payload=BAD)], read_draft, atomic=True)
    assert sum((await one.states()).values()) == 0
    results = await use.many(caller, [Draft(payload=GOOD), Draft(payload=BAD)], read_draft, atomic=False)
    assert [result.receipt for result in results] == [SubmitReceipt.CREATED, SubmitReceipt.REFUSED]


async def test_a_payload_over_the_size_of_its_topic_is_refused_on_every_surface(one: Instance) -> None:
    await apply(one, {"max_payload_bytes": 4})
    plain = PlainDrafts(ids=[new_id().bytes for _ in range(2)], payloads=[b"1234", b"12345"])
    answer = await framed(one, plain, Draft(payload=b"12345"))
    assert [index for index, result in answer.items() if result.error] == [1, 2]
    assert isinstance(answer[1].error, TooLarge)
    assert "5 bytes is over the limit of 4 bytes" in str(answer[1].error)
    assert "max_payload_bytes of topic" in str(answer[1].error)
    for is_plain in (True, False):
        draft = Draft(id=new_id().bytes, payload=b"12345")
        with pytest.raises(TooLarge, match="limit of 4 bytes"):
            await submits(one).one(caller_of(one.tenant), draft, read_draft, plain=is_plain)
    async with one.store.lane("upkeep").use() as db:
        submit = "SELECT headgate.submit('mail', $1::bytea, tenant => $2)"
        assert await db.fetchval(submit, b"1234", one.tenant)
        with pytest.raises(asyncpg.PostgresError, match="5 bytes is over the limit of 4 bytes") as told:
            await db.fetchval(submit, b"12345", one.tenant)
    assert told.value.hint == "headgate code: too_large"
    await apply(one, {"max_payload_bytes": None})
    await one.store.refresh_names()
    assert await framed(one, PlainDrafts(ids=[new_id().bytes], payloads=[b"12345"])) == {}


async def test_an_instance_that_never_saw_the_topic_knows_its_schema_with_its_first_job(database: str) -> None:
    async with Instance(database, name="one", running=False) as one, Instance(database, running=False) as two:
        await apply(one, {"payload_schema": SCHEMA})  # two has read the names before
        assert isinstance(
            (await framed(two, PlainDrafts(ids=[new_id().bytes], payloads=[BAD])))[0].error, PayloadMismatch
        )
        await apply(one, {"payload_schema": None})
        await two.store.refresh_names()
        assert await framed(two, PlainDrafts(ids=[new_id().bytes], payloads=[BAD])) == {}


async def test_other_topics_and_tenants_pay_a_look_at_an_empty_mapping(one: Instance) -> None:
    assert one.store.schemas_of("acme") is one.store.schemas_of("other")
    await apply(one, {"payload_schema": SCHEMA})
    assert dict(one.store.schemas_of("acme")) == {"mail": SCHEMA}
    assert dict(one.store.schemas_of("other")) == {}
    await apply(one, {"payload_schema": None})
    assert one.store.names.schemas == {}


async def test_a_schema_that_cannot_be_used_is_refused_and_the_old_one_stays(one: Instance) -> None:
    await apply(one, {"payload_schema": SCHEMA})
    with pytest.raises(InvalidInput, match="payload_schema"):
        await apply(one, {"payload_schema": '{"type": 3}'})
    assert dict(one.store.schemas_of("acme")) == {"mail": SCHEMA}


# ---------------------------------------------------------------------- leases


async def test_a_claim_that_asks_for_no_lease_gets_that_of_its_topic(one: Instance) -> None:
    await apply(one, {"lease": timedelta(seconds=300)})
    await one.submit(1)
    worker = await one.worker("w")
    await one.rules.request_jobs(worker.session, ["mail", "other"], 1)
    assert (await worker.take()).lease_ms == 300_000
    await one.submit(1)
    await one.rules.request_jobs(worker.session, ["mail"], 1, lease_seconds=20)
    assert (await worker.take()).lease_ms == 20_000
    await apply(one, {"lease": None})
    await one.submit(1)
    await one.rules.request_jobs(worker.session, ["mail"], 1)
    assert (await worker.take()).lease_ms == one.lease_ms
