"""No fault of one background service ends an instance silently: on uvloop, as it is served, and on asyncio."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
import uvloop

from headgate.control import keyring, revocation
from headgate.control.event_reader import Subscription
from headgate.control.live import Follower
from headgate.control.revocation import OpenCall
from headgate.dispatch import consumers, latencies, maintenance
from headgate.dispatch.delivery import Delivery
from headgate.dispatch.limit_timers import LimitTimers
from headgate.dispatch.locked import LockedWrite
from headgate.dispatch.lost_workers import _Lost
from headgate.dispatch.outcome_writes import OutcomeWrite
from headgate.dispatch.session import WorkerSession
from headgate.domain.errors import InstanceForgotten, InternalError
from headgate.domain.events import EventFilter
from headgate.domain.ids import TenantName, TopicName
from headgate.domain.jobs import Submission
from headgate.server import Server, ServerOptions
from tests.support.dispatch_waits import SOON, soon

TOKEN = "0123456789abcdef"
Run: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}
# By service, what it calls in each round: the fault is planted there.
CALLS = {
    "claims": ("claimer", "run_once"),
    "ticks": ("ticker", "run_once"),
    "scans": ("scanner", "run_once"),
    "announcements": ("store", "notify"),
    "limits": ("store", "admit_due"),
    "outcomes": ("outcomes.writer", "_take"),
    "unmatched outcomes": ("unmatched_outcomes.writer", "_take"),
    "submits": ("submitter.writer", "_take"),
    "locked submits": ("submitter.locked", "run_once"),
    "renewals": ("renewer", "run_once"),
    "lost workers": ("lost_workers", "run_once"),
    "pull workers": ("pulls", "run_once"),
    "events": ("events.reader", "run_once"),
    "hints": ("live.reader", "run_once"),
    "results": ("jobs", "finished"),
    "unblocking": ("unblocker", "run_once"),
    "progress": ("progress", "run_once"),
    "job logs": ("job_logs", "run_once"),
    "presence": ("presence", "run_once"),
    "bulk operations": ("bulk_runner", "run_once"),
    "schedules": ("scheduler", "run_once"),
    "webhooks": ("webhooks", "run_once"),
    "upkeep": ("upkeep", "run_once"),
    "latencies": ("latencies", "run_once"),
    "retention": ("retention", "run_once"),
    "durability": ("store", "check_durability"),
    "tokens": ("revocation._file", "refresh"),
    "keys": ("access.keyring", "run_once"),
    "consumers": ("consumers", "run_once"),
    "revoked operations": ("validator", "state"),
    "health": ("health", "set"),
    "notifications": ("store", "listen"),
}
CALLS_NOTHING = {"loop lag"}
PAGE = Path(__file__).parents[2] / "docs" / "operations" / "services.md"


def on_the_page() -> set[str]:
    """The services in the first column of the table of docs/operations/services.md."""
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {name.strip() for row in rows for name in row.split(",")}


@pytest.fixture
def relaxed() -> Iterator[None]:
    """A started server freezes the collector; a test's leftovers should not stay."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """Run a test's coroutine on a loop of this kind."""

    def run(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(work)

    return run


@pytest.fixture
def server(database: str, relaxed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(maintenance, "UPKEEP_SECONDS", 0.1)
    for module in (keyring, revocation, consumers):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(maintenance, "DURABILITY_SECONDS", 0.1)
    monkeypatch.setattr(latencies, "RECORD_SECONDS", 0.1)
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({TOKEN: {"tenant": "default"}}))
    tokens.chmod(0o600)
    return Server(
        ServerOptions(
            database_url=database,
            port=0,
            tokens_file=tokens,
            grace=timedelta(0),
            tick_seconds=0.2,
            retention_seconds=0.1,
            name="one",
        )
    )


class Planted:
    """The fault of one service: its call fails once, and then works."""

    def __init__(self, server: Server, service: str) -> None:
        path, name = CALLS[service]
        self.failed, self.worked = False, 0
        owner = server
        for part in filter(None, path.split(".")):
            owner = getattr(owner, part)
        call = getattr(owner, name)

        def planted(*args: Any, **more: Any) -> Any:
            if not self.failed:
                self.failed = True
                raise RuntimeError(f"planted in {service}")
            self.worked += 1
            return call(*args, **more)

        setattr(owner, name, planted)


async def poke(server: Server, session: WorkerSession) -> None:
    """Give each service that waits for an event something to do."""
    server.demands.wake_all()
    server.wakes.others = 1
    server.limits.limits_changed(session.tenant_no)
    server.unblocker.wake()
    server.bulk_runner.wake()
    server.scanner.topics.apart = True
    server.scanner.wake()
    server.scheduler.wake()
    server.webhooks.wake()
    now = time.monotonic()
    lost = _Lost(session, [(uuid4(), 1)], at=now, looked_at=now, due=0.0)
    server.lost_workers._lost.setdefault((session.tenant_no, "lost"), lost)
    server.lost_workers._added.set()
    with server.pulls.polling(session):
        pass
    if not server.events.reader._subscriptions:
        wanted = EventFilter(kinds=frozenset({"job.failed"}))
        server.events.reader._subscriptions.add(Subscription(session.tenant_no, wanted, OpenCall(session.identity)))
        server.events.reader._some.set()
    if not len(server.live.reader):
        server.live.reader._followers.add(Follower(session.tenant_no, OpenCall(session.identity)))
        server.live.reader._some.set()
    with suppress(InternalError):
        await server.submitter.submit(await server.store.fill([job(server)]), size=100)
    rows = await server.store.fill([job(server)])
    server.submitter.locked.put(LockedWrite(rows, [0], 1, {}, done=lambda _: None, failed=lambda _: None))
    write = OutcomeWrite(session.tenant_no, [uuid4()], [1], [b""], (), done=lambda _: None, failed=lambda _: None)
    server.outcomes.put(write)
    server.unmatched_outcomes.put(write)
    await server.waiters.wait(session.tenant_no, uuid4(), 0.3)


def job(server: Server) -> Submission:
    return Submission(id=server.ids.next_id(), tenant=TenantName("default"), topic=TopicName("mail"), payload=b"")


async def connected(server: Server, topic: str) -> WorkerSession:
    """A session with credit, without a wire."""
    session = WorkerSession(
        server.validator.identify(TOKEN), await server.store.tenant_no("default"), "w", time.monotonic, 60_000
    )
    session.mark_seen()
    server.sessions.open(session)
    (found,) = await server.store.topics("default", [topic])
    server.demands.grant(session, [found.no], 60_000, 1)
    return session


@pytest.mark.req("B5")
def test_each_service_that_fails_is_logged_counted_and_restarted_and_the_server_lives(
    server: Server, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        await server.start()
        stop = asyncio.Event()
        serving = asyncio.create_task(server.run(stop))
        try:
            assert set(CALLS) | CALLS_NOTHING == set(server.services._tasks), "a service whose fault is not tested"
            assert set(server.services._tasks) <= on_the_page(), "a service that operators cannot look up"
            session = await connected(server, "other")
            await soon(lambda: server.store._listener, "it listens")
            faults = {service: Planted(server, service) for service in CALLS}
            assert server.store._listener is not None
            server.store._listener.terminate()
            deadline = time.monotonic() + SOON.total_seconds()
            while not all(fault.worked for fault in faults.values()):
                assert time.monotonic() < deadline, {name: vars(fault) for name, fault in faults.items()}
                assert not serving.done()
                await poke(server, session)
            assert {name: server.services.failures[name] for name in CALLS} == dict.fromkeys(CALLS, 1)
            for name in CALLS:
                assert f"service_failed service={name}\n" in caplog.text
                assert f"planted in {name}\n" in caplog.text, "with its traceback"
            assert not server.health.ready, "a service failed within the last seconds"
            assert "not_ready reason=service" in caplog.text
            session = await connected(server, "mail")
            await server.submitter.submit(await server.store.fill([job(server)]), size=100)
            delivery = await asyncio.wait_for(session.next_part(), SOON.total_seconds())
            assert isinstance(delivery, Delivery)
            assert len(delivery) == 1
        finally:
            stop.set()
            await serving
            await server.stop(drain=False)

    run(check())


def test_an_instance_that_the_database_has_forgotten_ends_on_purpose_and_says_why(
    server: Server, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        await server.start()
        try:
            async with server.store.lane("upkeep").use() as db:
                await db.execute("DELETE FROM headgate.instances")
            with pytest.raises(InstanceForgotten):
                await asyncio.wait_for(server.run(asyncio.Event()), SOON.total_seconds())
            assert "server_ends service=ticks error=the database does not know instance" in caplog.text
        finally:
            await server.stop(drain=False)

    run(check())


def test_what_a_callback_of_the_loop_raises_is_logged_with_its_source(
    server: Server, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty_timer() -> None:
        raise RuntimeError("planted in a timer")

    async def check() -> None:
        await server.start()
        try:
            asyncio.get_running_loop().call_later(0.001, faulty_timer)
            await soon(lambda: server.services.failures["callbacks"], "the fault was counted")
        finally:
            await server.stop(drain=False)
        (record,) = [record for record in caplog.records if record.message.startswith("callback_failed")]
        assert record.levelno == logging.ERROR
        assert "faulty_timer" in record.message
        assert record.exc_info is not None

    run(check())


@pytest.mark.parametrize("seconds", [0.0, -1.0, 0.01])
def test_a_topic_with_new_capacity_is_woken_once_for_many_reports(run: Run, seconds: float) -> None:
    """With uvloop a timer for "now" is no timer: it does not know when it fires."""

    async def check() -> None:
        woken: list[tuple[int, bool]] = []
        timers = LimitTimers(lambda opened: woken.append((opened.topic_no, opened.waited)))
        timers.set([(1, seconds), (1, seconds), (1, 5.0), (2, None)])
        await soon(lambda: woken, "it was woken")
        assert woken == [(1, seconds > 0)]
        timers.set([(3, 0.0)])
        timers.stop()
        await asyncio.sleep(0)
        assert len(woken) == 1

    run(check())
