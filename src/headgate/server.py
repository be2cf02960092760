"""The composition root: builds, starts and stops one instance. The order of stopping is the design.

Start: check the database, the schema and the pause rows, register, open the port; only then is the instance ready.
Stop: not ready, no new sessions, no more claims, sessions asked to drain, sessions end or the grace is over, outcomes
written; renewals last, so that no lease lapses while its outcome is on the way.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import grpc

from headgate.api.grpc import admin_service
from headgate.api.grpc.batch_service import BatchService, batch_methods
from headgate.api.grpc.bulk_service import BulkService, bulk_methods
from headgate.api.grpc.guard import Guard
from headgate.api.grpc.health import Health
from headgate.api.grpc.peers import PeerStreams
from headgate.api.grpc.port import bind, new_server
from headgate.api.grpc.producer_service import ProducerService, producer_methods
from headgate.api.grpc.reflection import Reflection
from headgate.api.grpc.schedule_service import ScheduleService, schedule_methods
from headgate.api.grpc.tls import Tls
from headgate.api.grpc.topic_service import TopicService
from headgate.api.grpc.topic_service import methods as topic_methods
from headgate.api.grpc.worker_service import WorkerService, worker_methods
from headgate.control.admin import Admin
from headgate.control.auth import AllowAll, TokenFile, TokenValidator
from headgate.control.batches import Batches
from headgate.control.bulk import Bulk
from headgate.control.failed_logins import FailedLogins
from headgate.control.jobs import Jobs
from headgate.control.permissions import REFLECTION, RULES, Rule
from headgate.control.results import Waiters
from headgate.control.revocation import OpenCalls, Revocation, RevokedOperations
from headgate.control.schedules import Schedules
from headgate.control.submit import Submits
from headgate.control.topics import Topics
from headgate.dispatch.bulk_runner import BulkRunner
from headgate.dispatch.claimer import Claimer
from headgate.dispatch.demands import Demands
from headgate.dispatch.gate import Gate
from headgate.dispatch.limit_timers import LimitAdmitter
from headgate.dispatch.listener import Listener
from headgate.dispatch.lost_workers import LostWorkers, reconnect_grace_of
from headgate.dispatch.maintenance import DurabilityCheck, Upkeep
from headgate.dispatch.outcomes import OutcomeWriter
from headgate.dispatch.presence import Presence
from headgate.dispatch.progress import ProgressWriter
from headgate.dispatch.renewals import LeaseRenewer, beat_seconds
from headgate.dispatch.retention import Retention
from headgate.dispatch.scheduler import Scheduler
from headgate.dispatch.session_rules import SessionRules
from headgate.dispatch.sessions import WorkerSessions
from headgate.dispatch.submits import Submitter
from headgate.dispatch.tick_times import TickTimes
from headgate.dispatch.ticker import Ticker
from headgate.dispatch.unblocker import Unblocker
from headgate.dispatch.wakes import Wakes
from headgate.dispatch.watchdog import WatchdogGate
from headgate.domain import failpoints
from headgate.domain.errors import InstanceForgotten, InvalidSetting
from headgate.domain.ids import JobIdMaker
from headgate.ops.drain_log import log_drain
from headgate.ops.exposure import check_encrypted, check_private, exposure_of, is_loopback
from headgate.ops.files import connections_allowed
from headgate.ops.loop_lag import LoopLag
from headgate.ops.readiness import Readiness
from headgate.ops.services import Service, Services, report_callback_errors
from headgate.store.admin import AdminStore
from headgate.store.batches import BatchStore
from headgate.store.bulk import BulkStore
from headgate.store.bulk_chunks import BulkChunks
from headgate.store.control import controls
from headgate.store.dispatch_store import DispatchStore
from headgate.store.migrate import check_schema
from headgate.store.partitions import ensure_partitions
from headgate.store.preflight import inspect, require_durable
from headgate.store.quiet import quiet_set
from headgate.store.reads import JobStore
from headgate.store.retention import RetentionStore
from headgate.store.schedule_firing import FiringStore
from headgate.store.schedules import ScheduleStore
from headgate.store.topics import TopicStore
from headgate.store.upkeep import UpkeepRounds

log = logging.getLogger("headgate.server")
SERVICES = (
    "headgate.v1.WorkerService",
    "headgate.v1.ProducerService",
    admin_service.NAME,
    "headgate.v1.BatchService",
    "headgate.v1.BulkService",
    "headgate.v1.ScheduleService",
    "headgate.v1.TopicService",
)
WATCHES_PER_PEER = 100
"""Health.Watch needs no token, so it has a bound of its own, besides the one on all streams."""
STOP_SECONDS = 10.0
"""How long each part of a stop may take, besides the grace for workers: a hung statement must not keep us here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How one instance is to run."""

    database_url: str
    direct_database_url: str | None = None
    pooler: bool = False
    host: str = "127.0.0.1"
    port: int = 7070
    shared_port: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tokens_file: Path | None = None
    insecure: bool = False
    dev: bool = False
    unsafe: bool = False
    lease: timedelta = timedelta(seconds=60)
    reconnect_grace: timedelta | None = None
    grace: timedelta = timedelta(seconds=30)
    streams_per_peer: int = 10_000
    claim_limit: int = 500
    tick_seconds: float = 1.0
    retention_seconds: float = 60.0
    notifications: bool = True
    wakes: bool = True
    name: str = ""
    version: str = ""


class Server:
    """One instance. What `make bench` serves besides is added by bench/echo.py: `rules` and `extra_services`."""

    rules: ClassVar[Mapping[str, Rule]] = RULES
    extra_services: ClassVar[tuple[grpc.GenericRpcHandler, ...]] = ()

    def __init__(self, options: ServerOptions, *, validator: TokenValidator | None = None) -> None:
        """`validator` replaces the file of tokens."""
        if options.tokens_file is None and not options.dev:
            raise InvalidSetting(
                "tokens", "none are configured", hint="pass --tokens FILE, or --dev for loopback without tokens"
            )
        if options.dev and options.tokens_file is None and not is_loopback(options.host):
            raise InvalidSetting(
                "--host",
                f"{options.host} is reachable from other machines, and dev mode has no login",
                hint="use 127.0.0.1",
            )
        check_encrypted(options.host, tls=options.tls_cert is not None, insecure=options.insecure)
        check_private(options.tokens_file, setting="--tokens")
        check_private(options.tls_key, setting="--tls-key")
        lease, apart = options.lease.total_seconds(), beat_seconds(options.lease // timedelta(milliseconds=1))
        if lease < 2 * apart:
            raise InvalidSetting(
                "--lease",
                f"{lease:g} s is too short: workers beat every {apart} s, and a lease must outlast two beats",
                hint=f"use {2 * apart} or more; with {3 * apart} it outlasts a lost beat",
            )
        reconnect_grace = reconnect_grace_of(options.reconnect_grace, lease=options.lease)
        self.options = options
        tokens = options.tokens_file
        self.validator: TokenValidator = validator or (AllowAll() if tokens is None else TokenFile(tokens))
        self.store = DispatchStore(
            options.database_url,
            direct_dsn=options.direct_database_url,
            pooler=options.pooler,
            unsafe=options.unsafe,
        )
        self.sessions = WorkerSessions()
        self.lease_ms = int(options.lease.total_seconds() * 1000)
        self.jobs = JobStore(self.store)
        self.waiters = Waiters(self.jobs)
        self.times = TickTimes(options.tick_seconds)
        self.demands = Demands(self.store.names, self.times, wakes=options.wakes)
        self.wakes = Wakes(self.store, self.demands, self.times)
        self.unblocker = Unblocker(self.store, on_unblocked=self.wakes.jobs_returned)
        self.outcomes, self.unmatched_outcomes = (
            OutcomeWriter(
                self.store,
                on_returned=self.demands.wake_for_job,
                on_limit_opened=self.wakes.topics_ready,
                on_unblock=self.unblocker.wake,
                on_final=self.waiters.ended,
                awaited=self.waiters.any,
                on_due=self.times.due_at,
                unmatched=unmatched,
            )
            for unmatched in (False, True)
        )
        self.demands.abandon_unsent = self.outcomes.abandon_unsent
        self.bulk_runner = BulkRunner(BulkChunks(self.store), on_requeued=self.wakes.jobs_returned)
        self.limits = LimitAdmitter(self.store, self.demands, self.wakes)
        self.gate = Gate(self.sessions, self.demands, self.times)
        self.claimer = Claimer(
            self.store,
            self.demands,
            self.gate,
            self.limits.timers,
            abandon_unsent=self.outcomes.abandon_unsent,
            end_late=self.outcomes.end_late,
            claim_limit=options.claim_limit,
        )
        beat = self.lease_ms / 3000
        watchdog = WatchdogGate(beat=beat, now=time.monotonic, silence=max(beat, 5 * options.tick_seconds))
        self.ticker = Ticker(
            self.store,
            self.times,
            self.demands,
            self.gate,
            self.wakes,
            self.limits.timers,
            watchdog=watchdog,
            on_unblock=self.unblocker.wake,
            on_bulk=self.bulk_runner.wake,
        )
        self.listener = Listener(self.store, follow=self.wakes.follow, follow_all=self.demands.wake_all)
        self.submitter = Submitter(
            self.store,
            self.wakes,
            self.times,
            claimer=self.claimer,
            outcomes_wait=lambda: self.outcomes.writer.waiting_rows > 0,
            on_unblock=self.unblocker.wake,
            on_passed_over=self.demands.wake_for_job,
        )
        self.store.names.on_topic = self.demands.topic_appeared
        self.renewer = LeaseRenewer(self.store, self.sessions, now=time.monotonic, watchdog=watchdog)
        self.lost_workers = LostWorkers(
            self.renewer.calls,
            self.sessions,
            grace=None if reconnect_grace is None else reconnect_grace.total_seconds(),
            now=time.monotonic,
            watchdog=watchdog,
            on_expired=self.times.full_soon,
        )
        self.progress = ProgressWriter(self.renewer.calls)
        self.admin_store = AdminStore(self.store)
        self.presence = Presence(
            self.admin_store,
            self.sessions,
            topic_name=self.store.topic_name,
            now=time.monotonic,
            stuck=self.store.stuck.counts,
        )
        retention = RetentionStore(self.store)
        self.retention = Retention(retention, look_seconds=options.retention_seconds)
        self.admin = Admin(
            store=self.admin_store,
            gate=self.gate,
            wake=self.demands.wake,
            announce=self.wakes.announce,
            presence=self.presence,
            endings=self.waiters,
            retention=retention,
        )
        self.failed_logins = FailedLogins()
        self.open_calls = OpenCalls()
        self.revocation = Revocation(
            self.validator,
            holders=self.sessions.with_calls,
            calls=self.open_calls,
            exposed=self._exposed_tokens,
        )
        self.revoked_operations = RevokedOperations(self.validator, BulkStore(self.store))
        self.scheduler = Scheduler(FiringStore(self.store), topics_ready=self.wakes.topics_ready)
        self.ids = JobIdMaker(clock_ms=lambda: time.time_ns() // 1_000_000, entropy=os.urandom)
        self.port = 0
        self._grpc: grpc.aio.Server | None = None
        self._health = Health()
        # Nothing a service can do helps here: numbers this process remembers may mean something else by now.
        self.services = Services(fatal=(InstanceForgotten,))
        self.readiness = Readiness(
            self._health, self.ticker, tick_seconds=options.tick_seconds, failing=lambda: self.services.failing
        )
        self.loop_lag = LoopLag()
        self.upkeep = Upkeep(UpkeepRounds(self.store))
        self.durability = DurabilityCheck(self.store)
        self._accepting = False
        self._draining = asyncio.Event()
        self._stopping = asyncio.Lock()

    # ------------------------------------------------------------------ life

    async def start(self, *, before_listening: Callable[[], Awaitable[None]] | None = None) -> None:
        """Check, register, open the port. Raises if the database is not fit to serve from."""
        name = self.options.name or f"{socket.gethostname()}-{os.getpid()}"
        async with self.store.lane("tick").use() as db:
            require_durable(await inspect(db), unsafe=self.options.unsafe)
            self.store.checks_durability = not self.options.unsafe
            await check_schema(db)
            # Read before any worker is accepted; without it the gate is not known.
            paused = [(row.tenant_no, row.topic_no) for row in await controls(db) if row.paused]
            quiet = await quiet_set(db)
            await ensure_partitions(db)
            await self.store.names.refresh(db)
        if failpoints.armed:
            await failpoints.armed.reach("boot.checked")
        self.gate.set_paused(paused)
        self.gate.set_quiet(quiet)
        self.presence.instance = name
        await self.store.register(name, self.options.version)
        async with self.store.lane("leases").use():
            pass  # open from the beginning: when the database has no connection left, renewals must not be without one
        if before_listening is not None:
            await before_listening()
        if failpoints.armed:
            await failpoints.armed.reach("boot.registered")
        self.port = await self._listen(name)
        if failpoints.armed:
            await failpoints.armed.reach("boot.listening")
        report_callback_errors(asyncio.get_running_loop(), self.services.failures)
        for title, service in self._services().items():
            self.services.start(title, service.run)
        self._accepting = True
        self._health.set(ready=True)
        # Long-lived objects leave the collector's sight; what is left is young, and rarely looked at.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        if self.options.tls_cert is None and not is_loopback(self.options.host):
            log.warning('plaintext effect="the network can read tokens and jobs" host=%s', self.options.host)
        log.info("ready instance=%s no=%d port=%d", name, self.store.instance_no, self.port)

    def _services(self) -> dict[str, Service]:
        """The background services, by their names in logs and in `_stop`."""
        services: dict[str, Service] = {
            "claims": self.claimer,
            "ticks": self.ticker,
            "announcements": self.wakes,
            "limits": self.limits,
            "outcomes": self.outcomes.writer,
            "unmatched outcomes": self.unmatched_outcomes.writer,
            "submits": self.submitter.writer,
            "locked submits": self.submitter.locked,
            "renewals": self.renewer,
            "lost workers": self.lost_workers,
            "results": self.waiters,
            "unblocking": self.unblocker,
            "progress": self.progress,
            "presence": self.presence,
            "bulk operations": self.bulk_runner,
            "schedules": self.scheduler,
            "upkeep": self.upkeep,
            "retention": self.retention,
            "durability": self.durability,
            "tokens": self.revocation,
            "revoked operations": self.revoked_operations,
            "loop lag": self.loop_lag,
            "health": self.readiness,
        }
        if self.options.notifications and self.store.can_listen:
            services["notifications"] = self.listener
        return services

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`. A service that fails is restarted; raises InstanceForgotten, which no restart mends."""
        await self.services.until(stop)

    async def stop(self, *, drain: bool = True) -> None:
        """End in order; with drain, wait for the workers up to the grace. A second call waits for the first."""
        async with self._stopping:
            await self._stop(self.options.grace.total_seconds() if drain else 0.0)

    async def _stop(self, grace: float) -> None:
        if failpoints.armed:
            await failpoints.armed.reach("drain.begun")
        self._accepting = False
        self.services.stopping()
        self._draining.set()  # producers are sent away
        self.waiters.stop()
        self._health.drain()
        for service in (self.readiness, self.claimer, self.ticker, self.wakes, self.limits, self.listener):
            service.stop()
        self.lost_workers.stop()
        self.bulk_runner.stop()
        self.scheduler.stop()
        await self.services.finished("claims", STOP_SECONDS)
        self.sessions.drain(int(grace))
        port, self._grpc = self._grpc, None  # grpc.aio crashes the process when a server is stopped twice
        if port is not None:
            lines = asyncio.create_task(log_drain(self._remaining, grace=grace), name="drain log")
            # Refuses new calls at once; streams may go on until the grace is over.
            await port.stop(grace)
            lines.cancel()
        self.submitter.writer.stop()
        self.outcomes.writer.stop()
        self.unmatched_outcomes.writer.stop()
        await self.services.finished("bulk operations", STOP_SECONDS)
        await self.services.finished("submits", STOP_SECONDS)
        self.submitter.locked.stop()
        await self.services.finished("locked submits", STOP_SECONDS)
        await self.services.finished("outcomes", STOP_SECONDS)
        await self.services.finished("unmatched outcomes", STOP_SECONDS)
        await self.services.finished("schedules", STOP_SECONDS)
        self.renewer.stop()
        await self.services.stop()
        await self.store.close()
        log.info("stopped")

    def _remaining(self) -> tuple[int, int]:
        return len(self.sessions), sum(len(session.held) for session in self.sessions)

    async def _listen(self, name: str) -> int:
        session_rules = SessionRules(
            sessions=self.sessions,
            demands=self.demands,
            outcomes=self.outcomes,
            unmatched=self.unmatched_outcomes,
            renewer=self.renewer,
            lost_workers=self.lost_workers,
            progress=self.progress,
            tenants=self.store,
            now=time.monotonic,
            lease_ms=self.lease_ms,
            accepting=lambda: self._accepting,
        )
        worker = WorkerService(
            session_rules,
            uuids=self.store.uuids,
            topics=self.store,
            instance=name,
            version=self.options.version,
        )
        topics = Topics(TopicStore(self.store), on_change=self.limits.limits_changed, connected=self.admin.connected)
        submits = Submits(self.store, self.submitter, make_id=self.ids.next_id)
        batches = Batches(BatchStore(self.store), submits, make_id=self.ids.next_id, on_sealed=self.unblocker.wake)
        jobs = Jobs(
            store=self.jobs,
            waiters=self.waiters,
            calls=self.open_calls,
            validator=self.validator,
            draining=self._draining,
        )
        producer = ProducerService(
            submits=submits,
            jobs=jobs,
            validator=self.validator,
            calls=self.open_calls,
            instance=name,
            version=self.options.version,
            draining=self._draining,
        )
        tls = Tls.of(self.options.tls_cert, self.options.tls_key, self.options.tls_client_ca)
        bulk = Bulk(BulkStore(self.store), started=self.bulk_runner.wake, recheck=self.validator.recheck)
        schedules = Schedules(ScheduleStore(self.store), topics_ready=self.wakes.topics_ready, wake=self.scheduler.wake)
        rules = self.rules if not self.options.dev else {**self.rules, **REFLECTION}
        guard = Guard(self.validator, rules, self.failed_logins)
        server = new_server(guard, shared_port=self.options.shared_port, connections=connections_allowed())
        peers = PeerStreams(self.options.streams_per_peer)
        server.add_generic_rpc_handlers(
            (
                worker_methods(worker, peers),
                producer_methods(producer, peers),
                admin_service.methods(self.admin),
                batch_methods(BatchService(batches)),
                bulk_methods(BulkService(bulk)),
                schedule_methods(ScheduleService(schedules)),
                topic_methods(TopicService(topics)),
                self._health.methods(PeerStreams(WATCHES_PER_PEER), peers),
                *self.extra_services,
            )
        )
        if self.options.dev:
            server.add_generic_rpc_handlers((Reflection(SERVICES).methods(peers),))
        port = bind(server, self.options.host, self.options.port, tls)
        await server.start()
        self._grpc = server
        return port

    def _exposed_tokens(self) -> str:
        exposed = None if self.options.tokens_file is None else exposure_of(self.options.tokens_file)
        return "" if exposed is None else f"{exposed[0]}; run: {exposed[1]}"
