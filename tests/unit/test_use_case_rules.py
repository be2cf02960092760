"""Rules of the use cases that need no database: who is told what, how often, and what happens after a change."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock
from uuid import UUID, uuid4

import pytest

from headgate.control import failed_logins, streams
from headgate.control import jobs as jobs_module
from headgate.control.admin import Admin
from headgate.control.batches import Batches
from headgate.control.bulk import Bulk, Request
from headgate.control.credentials import Credentials
from headgate.control.jobs import Jobs
from headgate.control.keys import Keys
from headgate.control.payload_check import _pointer
from headgate.control.payload_edits import PayloadEdits
from headgate.control.rate_limits import RateLimits
from headgate.control.refusal_log import LINES_PER_SECOND, RefusalLog
from headgate.control.results import Waiters
from headgate.control.revocation import OpenCall, OpenCalls, Revocation
from headgate.control.schedules import Schedules
from headgate.control.streams import OpenStream
from headgate.control.submit import Submits
from headgate.control.suggestions import FilterSuggestions
from headgate.control.tenant_limits import READ_AGAIN_SECONDS, TenantLimits
from headgate.control.tenants import Tenants
from headgate.control.topic_policies import TopicPolicies, operator_values
from headgate.control.web_sessions import READ_SECONDS, SEEN_SECONDS, WebSessions
from headgate.domain.batch_graph import BatchGraph, BatchMember
from headgate.domain.errors import InvalidInput, NotFound, Refused, StoreUnavailable
from headgate.domain.identity import Identity, PermissionDenied, Scope
from headgate.domain.rate_limits import RateClass, RateLimited, parse_rate, parse_rates
from headgate.domain.redaction import MASK
from headgate.domain.schedules import Every, ScheduleSpec
from headgate.domain.states import State
from headgate.domain.tenants import TenantRateLimited
from headgate.domain.topic_policy import AppliedPolicy
from headgate.domain.topic_sets import TopicSet
from headgate.domain.workers import WorkerView
from headgate.sdk.encryption import Encryption, Purpose
from tests.support.dispatch_waits import ManualClock, settle_down

NOW = datetime(2026, 7, 1, tzinfo=UTC)


def caller(*topics: str, scopes: tuple[Scope, ...] = (Scope.ADMIN,), tenant: str = "acme", **more: Any) -> Identity:
    permitted = TopicSet.of(*topics) if topics else None
    return Identity(tenant=tenant, subject="ana", scopes=frozenset(scopes), topics=permitted, **more)


SYSTEM = caller(scopes=(Scope.SYSTEM,), tenant="")


# --- tenants ---------------------------------------------------------------------------------------------------------


async def test_a_tenant_sees_itself_and_no_other_one() -> None:
    store = Mock(get=AsyncMock())
    with pytest.raises(NotFound):
        await Tenants(store).get(caller(), "umbrella")
    store.get.assert_not_awaited()
    await Tenants(store).get(caller(), "acme")
    store.get.assert_awaited_once_with("acme", own=True)


@pytest.mark.parametrize(("found", "following"), [(["a", "b"], "b"), (["a"], ""), ([], "")])
async def test_only_a_full_page_of_tenants_has_another_one(found: list[str], following: str) -> None:
    store = Mock(page=AsyncMock(return_value=[SimpleNamespace(name=name) for name in found]))
    assert (await Tenants(store).page(SYSTEM, limit=2))[1] == following


async def test_this_instance_reads_quotas_again_after_they_were_set() -> None:
    changed = list[str]()
    tenants = Tenants(Mock(set_quotas=AsyncMock(), set_defaults=AsyncMock()), changed=changed.append)
    await tenants.set_quotas(SYSTEM, "acme", {"max_topics": 5})
    await tenants.set_defaults(SYSTEM, {"max_topics": 5})
    assert changed == ["acme", ""]


async def test_reading_the_same_rate_again_does_not_fill_the_bucket_of_a_tenant() -> None:
    clock = ManualClock()
    store = Mock(limits=AsyncMock(return_value=(parse_rate("1/1h:2", field="rate"), None, 0)))
    limits = TenantLimits(store, now=clock)
    await limits.check_session("acme", lambda: 0)
    limits.take("acme", 2)
    clock.advance(READ_AGAIN_SECONDS)
    await limits.check_session("acme", lambda: 0)
    assert store.limits.await_count == 2
    with pytest.raises(TenantRateLimited):
        limits.take("acme", 1)


# --- rates and refusals ----------------------------------------------------------------------------------------------


def test_a_changed_limit_of_a_credential_counts_at_once() -> None:
    limits = RateLimits(now=ManualClock())

    def with_rate(text: str) -> Identity:
        return caller(credential="key", rates=parse_rates(text, field="rates"))

    limits.take(with_rate("submit=1/1h"), RateClass.SUBMIT)
    with pytest.raises(RateLimited):
        limits.take(with_rate("submit=1/1h"), RateClass.SUBMIT)
    limits.take(with_rate("submit=5/1h"), RateClass.SUBMIT)


async def test_what_the_rate_of_a_tenant_refuses_does_not_count_for_the_credential() -> None:
    clock, store = ManualClock(), Mock(fill=AsyncMock(), refusals=AsyncMock(return_value={}))
    quotas = TenantLimits(Mock(limits=AsyncMock(return_value=(parse_rate("1/1s", field="rate"), None, 0))), now=clock)
    await quotas.check_session("acme", lambda: 0)
    quotas.take("acme", 1)
    rates = RateLimits(now=clock)
    submits: Any = Submits(store, MagicMock(), make_id=Mock(), rates=rates, tenants=quotas)
    who = caller(credential="key", rates=parse_rates("submit=3/1h", field="rates"))
    job = SimpleNamespace(topic="mail", payload=b"", id=b"", new_id=True)
    plain = SimpleNamespace(topic="mail", ids=[b""], payloads=[b""], priorities=[], unset_priorities=[], new_id=True)
    for refused in (
        submits.one(who, job, Mock(), plain=False),
        submits.many(who, [job], Mock(), atomic=False),
        submits.frame(who, plain, [], Mock(), Mock(), done=Mock(), failed=Mock()),
    ):
        with pytest.raises(TenantRateLimited):
            await refused
    rates.take(who, RateClass.SUBMIT, 3)


def test_refusals_that_were_left_out_are_counted_in_one_line_only(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    refusals = RefusalLog(clock)
    with caplog.at_level(logging.WARNING, logger="headgate.calls"):
        for _ in range(int(LINES_PER_SECOND) + 3):
            refusals.log("m", PermissionDenied("no"))
        clock.advance(1)
        refusals.log("m", PermissionDenied("no"))
        refusals.log("m", PermissionDenied("no"))
    assert [record.getMessage().rpartition("=")[2] for record in caplog.records[-2:]] == ["3", "0"]


def test_an_ipv4_address_in_ipv6_form_is_one_address_and_not_a_network() -> None:
    network = failed_logins._network
    assert network("::ffff:192.0.2.1") != network("::ffff:192.0.2.2")
    assert network("2001:db8::1") == network("[2001:db8::2%eth0]") == "2001:db8::"


# --- credentials -----------------------------------------------------------------------------------------------------


def test_the_state_of_credentials_changes_when_one_expires() -> None:
    keys, file = Mock(), Mock()
    keys.state.return_value, file.state.return_value = (1, 2), (10, 20)
    assert Credentials(keys, file=file).state() == (11, 22)


async def test_a_system_key_of_a_tenant_is_refused_and_not_made_without_it() -> None:
    store = Mock(create=AsyncMock())
    with pytest.raises(InvalidInput, match="cannot be combined"):
        await Keys(store).create(SYSTEM, "ops", scopes=["system"], tenant="acme")
    store.create.assert_not_awaited()


async def test_this_instance_reads_its_keys_again_after_a_rotation_and_a_revocation() -> None:
    view = SimpleNamespace(id="7k3mz9ab", name="ci")
    changed = Mock()
    keys = Keys(Mock(rotate=AsyncMock(return_value=(view, "k")), revoke=AsyncMock(return_value=view)), changed=changed)
    await keys.rotate(caller(), "7k3mz9ab", overlap=timedelta(0))
    assert changed.call_count == 1
    await keys.revoke(caller(), "7k3mz9ab")
    assert changed.call_count == 2


def test_a_call_that_has_been_told_of_a_change_is_not_told_again() -> None:
    validator: Any = Mock(recheck=Mock(return_value=caller("mail")))
    calls = OpenCalls()
    revocation = Revocation(validator, holders=lambda: (), calls=calls)
    with calls.watched(caller()) as call:
        assert [revocation.end_changed(), revocation.end_changed()] == [1, 0]
        assert call.changed.is_set()


async def test_a_stream_that_has_taken_its_new_rights_in_time_is_not_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    call, slept = OpenCall(caller()), list[float]()
    call.changed.set()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 1:
            call.changed.clear()  # it has read its rights again meanwhile
            asyncio.get_running_loop().call_soon(call.changed.set)  # and then they change once more

    monkeypatch.setattr("headgate.control.streams.asyncio.sleep", sleep)
    stream = OpenStream[None](Mock(), call, Mock())
    async with asyncio.timeout(5):
        await stream.overdue()
    assert slept == [streams.END_WITHIN] * 2


async def test_a_session_is_noted_as_seen_once_a_minute() -> None:
    clock = ManualClock()
    store = Mock(find=AsyncMock(return_value=SimpleNamespace(credential="c", claimed=caller(), tenant="acme")))
    validator: Any = Mock(learn=AsyncMock(), recheck=Mock(return_value=caller()))
    sessions = WebSessions(store, validator, Mock(), now=clock)
    for _ in range(int(2 * SEEN_SECONDS / READ_SECONDS)):
        await sessions.identify("secret")
        clock.advance(READ_SECONDS)
    assert [call.kwargs["seen"] for call in store.find.await_args_list].count(True) == 2


# --- jobs, batches, results ------------------------------------------------------------------------------------------


async def test_a_wait_that_is_over_leaves_nothing_behind() -> None:
    waiters = Waiters(Mock())
    await waiters.wait(1, uuid4(), 0)
    assert not waiters.any()


async def test_a_wait_that_is_over_does_not_take_another_one_for_the_same_job_along() -> None:
    waiters, job_id = Waiters(Mock()), uuid4()
    other = asyncio.create_task(waiters.wait(1, job_id, 60))
    await settle_down()
    await waiters.wait(1, job_id, 0)
    assert waiters.any()
    waiters.ended(1, job_id)
    async with asyncio.timeout(5):
        await other


async def test_an_error_about_one_tenant_does_not_keep_another_one_waiting() -> None:
    ended = {1: uuid4(), 2: uuid4()}

    async def finished(tenant_no: int, ids: list[UUID]) -> list[UUID]:
        if tenant_no == 1:
            raise StoreUnavailable("gone")
        return ids

    waiters = Waiters(Mock(finished=finished))
    first, second = (asyncio.create_task(waiters.wait(no, job_id, 60)) for no, job_id in ended.items())
    await settle_down()
    await waiters.run_once()
    async with asyncio.timeout(5):
        await second
    assert not first.done()
    waiters.stop()
    await first


async def test_no_call_waits_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "WAIT_MAX_SECONDS", 0.0)
    running = SimpleNamespace(topic="mail", state=State.RUNNING)
    store: Any = Mock(job=AsyncMock(return_value=running), tenant_no=AsyncMock(return_value=1))
    jobs = Jobs(store=store, waiters=Waiters(store), calls=OpenCalls(), validator=Mock(), draining=asyncio.Event())
    async with asyncio.timeout(5):
        assert await jobs.wait(caller(), uuid4(), seconds=3_600) is running


async def test_the_graph_of_a_batch_has_no_jobs_of_topics_that_a_token_hides() -> None:
    members = [BatchMember(id=uuid4(), topic=topic, state=State.PENDING) for topic in ("mail", "pay")]
    batch = SimpleNamespace(is_visible_to=lambda topics: True)
    store = Mock(graph=AsyncMock(return_value=BatchGraph(batch=batch, members=members)))  # type: ignore[arg-type]
    batches: Any = Batches(store, Mock(), make_id=Mock())
    assert [one.topic for one in (await batches.graph(caller("mail"), uuid4())).members] == ["mail"]
    assert len((await batches.graph(caller(), uuid4())).members) == 2


def edits(payload: bytes, note_reveal: AsyncMock | None = None) -> PayloadEdits:
    job = SimpleNamespace(payload=payload, state=State.DEAD, topic="mail")
    jobs: Any = Mock(get=AsyncMock(return_value=job))
    admin: Any = Mock(redrive=AsyncMock(), store=Mock(note_reveal=note_reveal))
    return PayloadEdits(jobs=jobs, admin=admin)


async def test_masks_of_an_encrypted_payload_stand_for_nothing() -> None:
    sealed = Encryption({"k": Encryption.new_key()}, write="k").seal(b"{}", Purpose.PAYLOAD)
    with pytest.raises(Refused, match="is encrypted"):
        await edits(sealed).redrive(caller(), uuid4(), f'{{"password": "{MASK}"}}')


async def test_what_is_masked_is_not_shown_if_that_cannot_be_noted() -> None:
    unavailable = AsyncMock(side_effect=StoreUnavailable("gone"))
    with pytest.raises(StoreUnavailable):
        await edits(b"{}", unavailable).reveal(caller(), uuid4())


async def test_a_token_for_some_topics_sees_those_of_a_worker_and_no_other_one_on_which_it_stands_by() -> None:
    worker = WorkerView(worker="w", incarnation=1, topics=["mail", "pay"], standby=["mail", "pay"])
    store = Mock(tenant_no=AsyncMock(return_value=1), workers_elsewhere=AsyncMock(return_value=([], [], False)))
    presence = Mock(workers=Mock(return_value=[worker]), lost=Mock(return_value=[]))
    others = dict.fromkeys(("gate", "wake", "announce", "endings", "retention", "check_schema"), Mock())
    admin = Admin(store=store, presence=presence, **others)
    (seen,) = (await admin.workers(caller("mail"))).workers
    assert (list(seen.topics), list(seen.standby)) == (["mail"], ["mail"])


async def test_jobs_are_not_moved_in_bulk_to_a_topic_that_the_token_does_not_permit() -> None:
    store = Mock(preview=AsyncMock())
    bulk = Bulk(store, started=Mock(), recheck=Mock())
    with pytest.raises(PermissionDenied):
        await bulk.preview(caller("mail"), Request(verb="move", filter="topic:mail", topic="pay"))
    await bulk.preview(caller("mail"), Request(verb="move", filter="-topic:pay", topic="mail"))
    store.preview.assert_awaited_once()


# --- topics, schedules, suggestions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [[], [Mock()]])
async def test_blocked_jobs_are_looked_for_only_after_a_change_of_a_policy(changes: list[Any]) -> None:
    topic: Any = SimpleNamespace(no=7)
    applied = AppliedPolicy(topic=topic, before_version=1, changes=changes)
    changed = list[int]()
    policies = TopicPolicies(Mock(apply_topic=AsyncMock(return_value=applied)), on_change=changed.append)
    await policies.apply(caller(), "mail", {"max_running": 5})
    assert changed == ([7] if changes else [])


def test_dead_letters_go_to_no_topic_that_the_token_does_not_permit() -> None:
    wanted = {"dead_letter_topic": "pay"}
    with pytest.raises(PermissionDenied):
        operator_values(caller("mail"), "mail", wanted, clear=())
    assert operator_values(caller("mail", "pay"), "mail", wanted, clear=()) == wanted


def test_a_setting_is_not_set_and_cleared_at_once() -> None:
    with pytest.raises(InvalidInput, match="is also given a value"):
        operator_values(caller(), "mail", {"max_running": 5}, clear=["max_running"])


@pytest.mark.parametrize(("name", "allowed"), [("mail", True), ("mail/night", True), ("mailbox", False), ("x", False)])
async def test_a_token_for_some_topics_names_new_schedules_after_them(name: str, allowed: bool) -> None:
    store = Mock(
        now=AsyncMock(return_value=NOW), get=AsyncMock(side_effect=NotFound("schedule", name)), put=AsyncMock()
    )
    schedules = Schedules(store, topics_ready=Mock(), wake=Mock(), payloads=Mock())
    put = schedules.put(
        caller("mail"), name, ScheduleSpec(topic="mail", timing=Every(interval=timedelta(hours=1))), expected=None
    )
    if allowed:
        await put
    else:
        with pytest.raises(PermissionDenied, match="named after"):
            await put
    assert store.put.await_count == allowed


async def test_a_preview_has_as_many_occurrences_as_were_asked_for() -> None:
    schedules = Schedules(Mock(), topics_ready=Mock(), wake=Mock(), payloads=Mock())
    for count in (1, 3):
        assert len(await schedules.preview(Every(interval=timedelta(hours=1)), count=count, after=NOW)) == count


async def test_suggestions_have_no_secrets_and_only_schedules_of_permitted_topics() -> None:
    failed = SimpleNamespace(last_error="password=hunter: no", tags=[], worker="")
    store = Mock(newest_jobs=AsyncMock(return_value=[failed]), schedule_names=AsyncMock(return_value=[]))
    suggestions = FilterSuggestions(store=store)
    for text in ("error:", "error_group:"):
        found = await suggestions.at(caller(), text, len(text))
        assert found.words
        assert "hunter" not in repr(found.words)
    await suggestions.at(caller("mail"), "schedule:", len("schedule:"))
    assert store.schedule_names.await_args.kwargs["topics"] == TopicSet.of("mail")


def test_names_with_slashes_and_tildes_are_escaped_in_the_path_of_a_mismatch() -> None:
    assert _pointer(["a/b", "c~d", 0]) == "/a~1b/c~0d/0"
