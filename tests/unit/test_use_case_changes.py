"""What use cases do around a change: whom they wake, what they read again, and what they refuse first."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock, call
from uuid import uuid4

import pytest

from headgate.control import failed_logins, job_exports
from headgate.control.admin import Admin
from headgate.control.batches import Batches
from headgate.control.event_reader import by_tenant
from headgate.control.failed_logins import FailedLogins
from headgate.control.job_exports import JobExports
from headgate.control.live import Follower, Live
from headgate.control.revocation import OpenCall, OpenCalls, RevokedOperations
from headgate.control.schedules import Schedules
from headgate.control.submit import SubmitResult, Submits
from headgate.control.topics import Topics
from headgate.control.web_sessions import WebSessions
from headgate.control.webhooks import Webhooks
from headgate.domain.bulk import StartedBulk
from headgate.domain.errors import InvalidInput, NotFound, PayloadMismatch, StoreUnavailable
from headgate.domain.events import StreamEvent
from headgate.domain.identity import CredentialsUnavailable, Identity, PermissionDenied, Scope, TokenRevoked
from headgate.domain.ids import JobId
from headgate.domain.jobs import SubmitAnswer
from headgate.domain.schedules import Every, ScheduleSpec
from headgate.domain.states import SubmitReceipt
from headgate.domain.topic_sets import TopicSet
from headgate.domain.web_sessions import LIFE, new_session_id
from headgate.domain.workers import RunningJob, WorkerView
from headgate.sdk.ids import new_id_maker
from tests.support.dispatch_waits import ManualClock

NOW = datetime(2026, 7, 1, tzinfo=UTC)
MISMATCH = PayloadMismatch("mail", path="", problem="is not JSON")


def caller(*topics: str, tenant: str = "acme", expires_at: float | None = None) -> Identity:
    permitted = TopicSet.of(*topics) if topics else None
    scopes = frozenset({Scope.ADMIN})
    return Identity(tenant=tenant, subject="ana", scopes=scopes, topics=permitted, expires_at=expires_at)


# --- submits and batches ---------------------------------------------------------------------------------------------


async def test_a_job_that_was_sent_without_an_id_has_one_result_whether_it_is_new_or_not() -> None:
    made, older = new_id_maker().next_id(), new_id_maker().next_id()
    queue, rows = Mock(), Mock()
    store = Mock(refusals=AsyncMock(return_value={}), fill=AsyncMock(return_value=rows), checks_payloads=lambda *_: 0)
    submits: Any = Submits(store, queue, make_id=Mock())
    read = Mock(return_value=SimpleNamespace(id=made, topic="mail", payload=b"{}"))
    results = list[list[SubmitResult]]()
    raw: Any = SimpleNamespace(id=b"", topic="mail", payload=b"{}", new_id=False)
    await submits.frame(caller(), None, [raw], read, Mock(), done=results.append, failed=Mock())
    committed = queue.put.call_args.kwargs["done"]
    committed({})
    committed({0: SubmitAnswer(receipt=SubmitReceipt.DUPLICATE, job_id=older)})
    assert [[one.job_id for one in found] for found in results] == [[made.bytes], [older.bytes]]


async def test_a_job_that_is_refused_beside_others_of_its_frame_is_counted() -> None:
    queue, refused = Mock(), Counter[str]()
    store = Mock(
        refusals=AsyncMock(return_value={}), fill=AsyncMock(return_value=Mock()), checks_payloads=lambda *_: False
    )
    submits: Any = Submits(store, queue, make_id=Mock(), refused=refused)
    good = SimpleNamespace(id=new_id_maker().next_id(), topic="mail", payload=b"{}")
    read = Mock(side_effect=[good, InvalidInput("topic", "is none")])
    raw: Any = SimpleNamespace(id=good.id.bytes, topic="mail", payload=b"{}", new_id=True)
    await submits.frame(caller(), None, [raw, raw], read, Mock(), done=Mock(), failed=Mock())
    assert not refused, "its caller is not answered yet"
    queue.put.call_args.kwargs["done"]({})
    assert refused == {"invalid_input": 1}


async def test_a_sealed_batch_wakes_dispatch_for_its_callback() -> None:
    sealed = Mock()
    batches: Any = Batches(Mock(seal_batch=AsyncMock()), Mock(), make_id=Mock(), on_sealed=sealed)
    await batches.seal(caller(), uuid4())
    sealed.assert_called_once()


async def test_the_callback_of_a_batch_must_match_the_schema_of_its_topic() -> None:
    store = Mock(open_batch=AsyncMock())
    submits = Mock(payloads=Mock(refuse=Mock(side_effect=MISMATCH)))
    with pytest.raises(PayloadMismatch):
        await Batches(store, submits, make_id=Mock()).open(caller(), Mock(), Mock())
    store.open_batch.assert_not_awaited()


async def test_a_download_breaks_off_when_its_token_is_revoked_and_goes_on_with_the_topics_it_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_exports, "exported", lambda job: SimpleNamespace(line=lambda _: job))
    now = list[Identity | TokenRevoked]([caller("mail")])

    def recheck(identity: Identity, *, uses: bool = True) -> Identity:
        del identity, uses
        if isinstance(now[0], TokenRevoked):
            raise now[0]
        return now[0]

    pages = [SimpleNamespace(jobs=[SimpleNamespace(id=no)], cursor="more") for no in range(4)]
    jobs = Mock(get=AsyncMock(side_effect=lambda _caller, job_id, **_: f"job {job_id}"))
    bulk, calls = Mock(list_jobs=AsyncMock(side_effect=pages)), OpenCalls()
    validator: Any = Mock(recheck=recheck)
    exports = JobExports(bulk=bulk, jobs=jobs, calls=calls, validator=validator, redaction=Mock())
    lines = await exports.open(caller(), "state:dead")
    assert await anext(lines) == "job 0\n"
    (call_,) = calls
    call_.changed.set()
    assert await anext(lines) == "job 1\n"
    assert [one.args[0] for one in jobs.get.await_args_list] == [caller(), caller("mail")]
    assert await anext(lines) == "job 2\n"
    assert bulk.list_jobs.await_args.args[0] == caller("mail")
    now[0] = TokenRevoked("the token of ana is not valid any more")
    call_.changed.set()
    with pytest.raises(TokenRevoked):
        await anext(lines)
    await lines.aclose()
    assert not len(calls)


# --- workers ---------------------------------------------------------------------------------------------------------


def admin_of(*, here: list[WorkerView], running: list[RunningJob], elsewhere: Any = ((), (), False)) -> Admin:
    store = Mock(
        tenant_no=AsyncMock(return_value=1),
        workers_elsewhere=AsyncMock(return_value=elsewhere),
        running=AsyncMock(return_value=(running, False)),
        stop_worker=AsyncMock(return_value=NOW),
        all_stops=AsyncMock(return_value=[]),
    )
    presence = Mock(workers=Mock(return_value=here), lost=Mock(return_value=[]))
    others = {name: Mock() for name in ("gate", "wake", "endings", "retention", "check_schema")}
    return Admin(store=store, presence=presence, announce=AsyncMock(), **others)


async def test_a_token_for_some_topics_does_not_see_what_a_worker_runs_of_others() -> None:
    jobs = [
        RunningJob(id=new_id_maker().next_id(), worker="w", instance="", topic=topic, attempt=1, since=NOW)
        for topic in ("mail", "pay")
    ]
    admin = admin_of(here=[WorkerView(worker="w", incarnation=1, topics=["mail", "pay"])], running=jobs)
    (seen,) = (await admin.workers(caller("mail"), running=True)).workers
    assert [job.topic for job in seen.running] == ["mail"]


async def test_a_worker_without_an_incarnation_is_not_counted_twice_after_it_has_moved() -> None:
    admin = admin_of(
        here=[WorkerView(worker="w", topics=["mail"])],
        running=[],
        elsewhere=([WorkerView(worker="w", incarnation=5, topics=["mail"])], [], False),
    )
    assert len((await admin.workers(caller())).workers) == 1


async def test_a_worker_that_no_instance_reports_may_be_stopped_only_if_not_all_are_reported() -> None:
    with pytest.raises(NotFound):
        await admin_of(here=[], running=[]).stop_worker(caller(), "w")
    admin = admin_of(here=[], running=[], elsewhere=([], [], True))
    assert (await admin.stop_worker(caller(), "w")).sessions == 0
    assert admin.gate.set_stops.call_count == 1  # type: ignore[attr-defined]


# --- credentials and sessions ----------------------------------------------------------------------------------------


def revoked(recheck: Mock) -> tuple[RevokedOperations, Mock, Mock]:
    started = StartedBulk(tenant_no=1, tenant="acme", id=uuid4(), credential="key-1", topics=None, who="ana")
    operations = Mock(started=AsyncMock(return_value=[started]), end_revoked=AsyncMock())
    validator = Mock(state=Mock(return_value=(1, 0)), learn=AsyncMock(), recheck=recheck)
    return RevokedOperations(validator, operations), operations, validator


async def test_an_operation_goes_on_while_nothing_is_known_of_its_credential_and_is_looked_at_again() -> None:
    service, operations, validator = revoked(Mock(side_effect=CredentialsUnavailable("the keys cannot be read")))
    await service.run_once()
    validator.learn.assert_awaited_once_with("key-1")
    operations.end_revoked.assert_not_awaited()
    await service.run_once()
    assert operations.started.await_count == 2


async def test_operations_are_looked_at_again_after_an_error_and_not_without_a_change() -> None:
    service, operations, _ = revoked(Mock(return_value=caller()))
    operations.started.side_effect = [StoreUnavailable("gone"), [], []]
    for _ in range(4):
        await service.run_once()
    assert operations.started.await_count == 2


def test_a_call_that_has_checked_its_rights_waits_for_the_next_change() -> None:
    one = OpenCall(caller())
    one.changed.set()
    one.recheck(Mock(recheck=Mock(return_value=caller("mail"))), Scope.READ)
    assert not one.changed.is_set()
    assert one.identity == caller("mail")


@pytest.mark.parametrize(("tenant", "goes_on"), [("acme", True), ("umbrella", False)])
async def test_a_live_page_ends_when_its_token_belongs_to_another_tenant(tenant: str, goes_on: bool) -> None:
    validator: Any = Mock(recheck=Mock(return_value=caller(tenant=tenant)))
    live = Live(Mock(), calls=OpenCalls(), validator=validator, draining=Mock(is_set=lambda: False))
    one = Follower(1, OpenCall(caller()))
    one.call.changed.set()
    assert await live._may_go_on(one, None) is goes_on


def sessions_of(*found: Any, identity: Identity | None = None) -> tuple[WebSessions, Mock, Mock]:
    session = SimpleNamespace(id="s", subject="ana", credential="c", claimed=caller(), tenant="acme")
    store = Mock(
        begin=AsyncMock(return_value=session),
        find=AsyncMock(side_effect=found or None, return_value=session),
        revoke=AsyncMock(return_value=session),
        listed=AsyncMock(return_value=[session]),
    )
    known = identity or caller()
    validator = Mock(learn=AsyncMock(), recheck=Mock(return_value=known), identify=Mock(return_value=known))
    return WebSessions(store, validator, Mock(), now=ManualClock(), clock=lambda: 1_000.0), store, validator


async def test_a_revoked_session_is_read_again_at_once() -> None:
    sessions, store, _ = sessions_of()
    await sessions.identify("secret")
    await sessions.identify("secret")
    assert store.find.await_count == 1
    await sessions.revoke(caller(), new_session_id())
    await sessions.identify("secret")
    assert store.find.await_count == 2


async def test_a_list_of_sessions_does_not_count_as_a_use_of_their_keys() -> None:
    sessions, _, validator = sessions_of()
    await sessions.page(caller())
    assert validator.recheck.call_args.kwargs == {"uses": False}


@pytest.mark.parametrize(("expires_in", "life"), [(60.0, timedelta(minutes=1)), (1e9, LIFE)])
async def test_a_session_lives_no_longer_than_its_token_and_than_any_session(
    expires_in: float, life: timedelta
) -> None:
    sessions, store, _ = sessions_of(identity=caller(expires_at=1_000.0 + expires_in))
    await sessions.login("token", address="192.0.2.1", agent="")
    assert store.begin.await_args.args[0].life == life


@pytest.mark.parametrize(
    ("scopes", "begins"), [({Scope.READ}, True), ({Scope.SYSTEM}, True), ({Scope.SUBMIT, Scope.WORK}, False)]
)
async def test_a_session_begins_with_a_token_that_can_show_something(scopes: set[Scope], begins: bool) -> None:
    sessions, store, _ = sessions_of(identity=replace(caller(), scopes=frozenset(scopes)))
    login = sessions.login("token", address="192.0.2.1", agent="")
    if begins:
        await login
    else:
        with pytest.raises(PermissionDenied, match='"read"'):
            await login
    assert store.begin.await_count == begins


def test_an_address_that_fails_again_is_not_the_first_one_to_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_logins, "PEERS", 2)
    logins = FailedLogins(now=ManualClock())
    for address in ("192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.3"):
        logins._note(address)
    assert set(logins._peers) == {"192.0.2.1", "192.0.2.3"}


# --- webhooks, topics, schedules, events -----------------------------------------------------------------------------


async def test_a_changed_webhook_gets_what_has_waited_for_it() -> None:
    wake = Mock()
    webhooks = Webhooks(Mock(update=AsyncMock()), check_url=AsyncMock(), make_id=Mock(), entropy=Mock(), wake=wake)
    await webhooks.update(caller(), uuid4(), {"enabled": True})
    wake.assert_called_once()


async def test_a_test_and_a_resend_are_sent_at_once() -> None:
    wake = Mock()
    store = Mock(ping=AsyncMock(), resend=AsyncMock())
    webhooks = Webhooks(store, check_url=AsyncMock(), make_id=Mock(), entropy=Mock(), wake=wake)
    await webhooks.test(caller(), uuid4())
    assert wake.call_count == 1
    await webhooks.resend(caller(), uuid4(), uuid4())
    assert wake.call_count == 2


@pytest.mark.parametrize("changes", [{"url": "https://example.com/"}, {"enabled": True}, {"include_result": True}])
async def test_who_may_not_read_results_does_not_have_them_sent_anywhere(changes: dict[str, object]) -> None:
    before = SimpleNamespace(spec=SimpleNamespace(include_result=True))
    store = Mock(get=AsyncMock(return_value=before), update=AsyncMock())
    webhooks = Webhooks(store, check_url=AsyncMock(), make_id=Mock(), entropy=Mock(), wake=Mock())
    blind = replace(caller(), scopes=frozenset({Scope.OPERATE}))
    with pytest.raises(PermissionDenied, match="read"):
        await webhooks.update(blind, uuid4(), changes)
    store.update.assert_not_awaited()
    await webhooks.update(blind, uuid4(), {"include_result": False})
    store.update.assert_awaited_once()


async def test_the_url_of_a_changed_webhook_is_checked_before_it_is_stored() -> None:
    store, refuse = Mock(update=AsyncMock()), AsyncMock(side_effect=InvalidInput("url", "is private"))
    webhooks = Webhooks(store, check_url=refuse, make_id=Mock(), entropy=Mock(), wake=Mock())
    with pytest.raises(InvalidInput):
        await webhooks.update(caller(), uuid4(), {"url": "https://10.0.0.1/"})
    store.update.assert_not_awaited()


async def test_deliveries_of_an_unknown_webhook_are_not_an_empty_list() -> None:
    store = Mock(get=AsyncMock(side_effect=NotFound("webhook", "x")), deliveries=AsyncMock(return_value=[]))
    webhooks = Webhooks(store, check_url=AsyncMock(), make_id=Mock(), entropy=Mock(), wake=Mock())
    with pytest.raises(NotFound):
        await webhooks.deliveries(caller(), uuid4())


@pytest.mark.parametrize(("found", "following"), [(["a", "b"], "b"), (["a"], "")])
async def test_only_a_full_page_of_topics_has_another_one(found: list[str], following: str) -> None:
    views = [SimpleNamespace(name=name, sources=SimpleNamespace(declarations=[])) for name in found]
    topics = Topics(Mock(list_topics=AsyncMock(return_value=views)), on_change=Mock(), connected=AsyncMock())
    assert (await topics.page(caller(), limit=2))[1] == following


async def test_the_payload_of_a_schedule_must_match_the_schema_of_its_topic() -> None:
    store = Mock(now=AsyncMock(return_value=NOW), put=AsyncMock())
    payloads = Mock(refuse=Mock(side_effect=MISMATCH))
    schedules = Schedules(store, topics_ready=Mock(), wake=Mock(), payloads=payloads)
    with pytest.raises(PayloadMismatch):
        await schedules.put(
            caller(), "s", ScheduleSpec(topic="mail", timing=Every(interval=timedelta(hours=1))), expected=None
        )
    store.put.assert_not_awaited()


async def test_the_scheduler_looks_at_a_schedule_that_was_put_or_resumed() -> None:
    store = Mock(now=AsyncMock(return_value=NOW), put=AsyncMock(), get=AsyncMock(), resume=AsyncMock())
    wake = Mock()
    schedules = Schedules(store, topics_ready=Mock(), wake=wake, payloads=Mock())
    spec = ScheduleSpec(topic="mail", timing=Every(interval=timedelta(hours=1)))
    await schedules.put(caller(), "s", spec, expected=None)
    assert wake.call_count == 1
    await schedules.resume(caller(), "s", reason="")
    assert wake.call_count == 2


async def test_a_triggered_job_is_claimed_at_once() -> None:
    made: JobId = new_id_maker().next_id()
    store, ready = Mock(get=AsyncMock(), trigger=AsyncMock(return_value=(made, True, 7))), Mock()
    schedules = Schedules(store, topics_ready=ready, wake=Mock(), payloads=Mock())
    assert await schedules.trigger(caller(), "s", request=made, reason="") == (made, True)
    assert ready.mock_calls == [call([7])]


def test_an_event_of_all_tenants_is_for_each_of_them() -> None:
    events = [
        StreamEvent(id=f"e{no}", kind="topic.paused", at=NOW, tenant_no=no, xid=no, topic="") for no in (0, 1, 2, 3)
    ]
    found = by_tenant(events, {1, 2})
    assert {no: [one.id for one in some] for no, some in found.items()} == {1: ["e0", "e1"], 2: ["e0", "e2"]}
