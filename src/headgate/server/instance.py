"""The composition root: builds, starts and stops one instance. The order of stopping is the design.

Start: check the database, the schema and the pause rows, register, open the port; only then is the instance ready.
Stop: not ready, no new sessions, no more claims, sessions asked to drain, sessions end or the grace is over, outcomes
written; renewals last, so that no lease expires while its outcome is on the way.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

import grpc

from headgate.api.grpc.health import Health
from headgate.control.access import Access
from headgate.control.admin import Admin
from headgate.control.auth import TokenFile, TokenValidator
from headgate.control.events import Events
from headgate.control.live import Live
from headgate.control.payload_check import PayloadCheck
from headgate.control.permissions import RULES, Rule
from headgate.control.results import Waiters
from headgate.control.revocation import RevokedOperations
from headgate.control.tenant_limits import TenantLimits
from headgate.dispatch.bulk_runner import BulkRunner
from headgate.dispatch.claimer import Claimer
from headgate.dispatch.consumers import Consumers
from headgate.dispatch.demands import Demands
from headgate.dispatch.gate import Gate
from headgate.dispatch.job_logs import LogWriter
from headgate.dispatch.latencies import LatencyRecorder
from headgate.dispatch.limit_timers import LimitAdmitter
from headgate.dispatch.listener import Listener
from headgate.dispatch.lost_workers import LostWorkers, reconnect_grace_of
from headgate.dispatch.maintenance import DurabilityCheck, Upkeep
from headgate.dispatch.outcomes import OutcomeWriter
from headgate.dispatch.presence import Presence
from headgate.dispatch.progress import ProgressWriter
from headgate.dispatch.pull_workers import PullWorkers
from headgate.dispatch.renewals import LeaseRenewer
from headgate.dispatch.retention import Retention
from headgate.dispatch.scans import Scanner
from headgate.dispatch.scheduler import Scheduler
from headgate.dispatch.sessions import WorkerSessions
from headgate.dispatch.submits import Submitter
from headgate.dispatch.tick_times import TickTimes
from headgate.dispatch.ticker import Ticker
from headgate.dispatch.unblocker import Unblocker
from headgate.dispatch.wakes import Wakes
from headgate.dispatch.watchdog import WatchdogGate
from headgate.dispatch.webhook_deliverer import WebhookDeliverer
from headgate.domain import failpoints
from headgate.domain.diagnosis import Level
from headgate.domain.egress import EgressRules
from headgate.domain.errors import HeadgateError, InstanceForgotten, InvalidSetting
from headgate.domain.ids import JobIdMaker
from headgate.domain.redaction import Redaction
from headgate.domain.tallies import Tallies
from headgate.ops.allocator import limit_arenas
from headgate.ops.drain_log import log_drain
from headgate.ops.exposure import exposed_text, is_loopback
from headgate.ops.issuers import read_issuers
from headgate.ops.loop_lag import LoopLag
from headgate.ops.readiness import Readiness
from headgate.ops.services import Service, Services, report_callback_errors
from headgate.ops.webhook_http import WebhookHttp
from headgate.server.listeners import Listeners
from headgate.server.metrics import ServerMetrics, TopicLabels
from headgate.server.options import ServerOptions, check_options
from headgate.server.use_cases import use_cases
from headgate.store.admin import AdminStore
from headgate.store.bulk import BulkStore
from headgate.store.bulk_chunks import BulkChunks
from headgate.store.control import controls
from headgate.store.diagnosis import check_tenants
from headgate.store.dispatch_store import DispatchStore
from headgate.store.events import EventStore
from headgate.store.hints import HintStore
from headgate.store.keys import KeyStore
from headgate.store.latencies import LatencyStore
from headgate.store.migrate import check_schema
from headgate.store.partitions import ensure_partitions
from headgate.store.preflight import inspect, require_durable
from headgate.store.quiet import quiet_set
from headgate.store.reads import JobStore
from headgate.store.retention import RetentionStore
from headgate.store.schedule_firing import FiringStore
from headgate.store.tenants import TenantStore
from headgate.store.upkeep import UpkeepRounds
from headgate.store.webhook_deliveries import DeliveryStore
from headgate.store.worker_stops import all_stops

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from headgate.ops.tracing import DispatchTracer

log = logging.getLogger("headgate.server")
STOP_SECONDS = 10.0
"""How long each part of a stop may take, besides the grace for workers: a hung statement must not keep us here."""


class Server:
    """One instance. What `make bench` serves besides is added by bench/echo.py: `rules` and `extra_services`."""

    rules: ClassVar[Mapping[str, Rule]] = RULES
    extra_services: ClassVar[tuple[grpc.GenericRpcHandler, ...]] = ()

    def __init__(
        self,
        options: ServerOptions,
        *,
        validator: TokenValidator | None = None,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        """`validator` replaces all credentials, `tracer_provider` that of the environment."""
        check_options(options)
        reconnect_grace = reconnect_grace_of(options.reconnect_grace, lease=options.lease)
        self.options = options
        self.store = DispatchStore(
            options.database_url, direct_dsn=options.direct_database_url, pooler=options.pooler, unsafe=options.unsafe
        )
        self.key_store = KeyStore(self.store)
        self.tenant_limits = TenantLimits(TenantStore(self.store))
        self.access = Access(
            self.key_store,
            file=None if options.tokens_file is None else TokenFile(options.tokens_file),
            issuers=read_issuers(options.jwt_issuers),
            rates=options.rates,
            dev=options.dev,
            validator=validator,
        )
        self.validator = self.access.validator
        self.sessions = WorkerSessions()
        self.tallies = Tallies(topics_max=options.metrics_topics, label_of=TopicLabels(self.store.names).of)
        self.lease_ms = int(options.lease.total_seconds() * 1000)
        self.jobs = JobStore(self.store)
        self.waiters = Waiters(self.jobs)
        self.times = TickTimes(options.tick_seconds)
        self.demands = Demands(self.store.names, self.times, wakes=options.wakes)
        self.pulls = PullWorkers(self.demands, now=time.monotonic)
        self.wakes = Wakes(self.store, self.demands, self.times)
        self.unblocker = Unblocker(self.store, on_unblocked=self.wakes.jobs_returned)
        allow, plain, ports = options.webhook_allow, options.webhook_http, options.webhook_ports
        self.webhook_http = WebhookHttp(EgressRules.of(networks=allow, plain_http=plain, ports=ports, dev=options.dev))
        self.webhooks = WebhookDeliverer(
            DeliveryStore(self.store), self.webhook_http, clock=time.time, redaction=Redaction.of(options.redact)
        )
        self.outcomes, self.unmatched_outcomes = (
            OutcomeWriter(
                self.store,
                on_returned=self.demands.wake_for_job,
                on_limit_opened=self.wakes.topics_ready,
                on_unblock=self.unblocker.wake,
                on_webhook=self.webhooks.wake,
                on_final=self.waiters.ended,
                awaited=self.waiters.any,
                on_due=self.times.due_at,
                unmatched=unmatched,
                tallies=self.tallies,
            )
            for unmatched in (False, True)
        )
        self.demands.abandon_unsent = self.outcomes.abandon_unsent
        self.bulk_runner = BulkRunner(BulkChunks(self.store), on_requeued=self.wakes.jobs_returned)
        self.limits = LimitAdmitter(self.store, self.demands, self.wakes)
        self.gate = Gate(self.sessions, self.demands, self.times)
        self.tracer = self._tracer(tracer_provider) if options.tracing or tracer_provider is not None else None
        self.claimer = Claimer(
            self.store,
            self.demands,
            self.gate,
            self.limits.timers,
            abandon_unsent=self.outcomes.abandon_unsent,
            end_late=self.outcomes.end_late,
            claim_limit=options.claim_limit,
            tallies=self.tallies,
            trace=None if self.tracer is None else self.tracer.claimed,
            mismatch=self._mismatch,
        )
        beat = self.lease_ms / 3000
        watchdog = WatchdogGate(beat=beat, now=time.monotonic, silence=max(beat, 5 * options.tick_seconds))
        self.scanner = Scanner(self.store, self.demands, self.times)
        self.ticker = Ticker(
            self.store,
            self.times,
            self.demands,
            self.gate,
            self.wakes,
            self.limits.timers,
            self.scanner,
            watchdog=watchdog,
            tallies=self.tallies,
            on_unblock=self.unblocker.wake,
            on_bulk=self.bulk_runner.wake,
            on_webhook=self.webhooks.wake,
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
            tallies=self.tallies,
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
        self.job_logs = LogWriter(self.store)
        self.admin_store = AdminStore(self.store)
        self.consumers = Consumers(self.store, self.sessions, self.pulls, self.demands, now=time.monotonic)
        self.presence = Presence(
            self.admin_store,
            self.sessions,
            self.pulls,
            topic_name=self.store.topic_name,
            now=time.monotonic,
            moment=self.times.moment,
            stuck=self.store.stuck.counts,
        )
        self.payloads = PayloadCheck(self.store.schemas_of, self.store.payload_sizes_of)
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
            check_schema=self.payloads.refuse,
        )
        self.revocation = self.access.revocation(
            self.sessions.with_calls, exposed=lambda: exposed_text(options.tokens_file)
        )
        self.revoked_operations = RevokedOperations(self.validator, BulkStore(self.store))
        self.scheduler = Scheduler(FiringStore(self.store), topics_ready=self.wakes.topics_ready)
        self.ids = JobIdMaker(clock_ms=lambda: time.time_ns() // 1_000_000, entropy=os.urandom)
        self.health = Health()
        self.listeners = Listeners(options, self.health, self.store)
        # Nothing a service can do helps here: numbers this process remembers may mean something else by now.
        self.services = Services(fatal=(InstanceForgotten,))
        self.readiness = Readiness(
            self.health, self.ticker, tick_seconds=options.tick_seconds, failing=lambda: self.services.failing
        )
        self.loop_lag = LoopLag()
        self.upkeep = Upkeep(UpkeepRounds(self.store))
        self.latencies = LatencyRecorder(LatencyStore(self.store), self.tallies)
        self.accepting = False
        self.metrics = ServerMetrics(self)
        self.draining = asyncio.Event()
        self._stopping = asyncio.Lock()
        self.events = Events(
            EventStore(self.store),
            calls=self.access.open_calls,
            validator=self.validator,
            draining=self.draining,
            record_now=self.wakes.control_changed,
        )
        self.live = Live(
            HintStore(self.store), calls=self.access.open_calls, validator=self.validator, draining=self.draining
        )

    def _mismatch(self, topic_no: int, payload: bytes) -> HeadgateError | None:
        """Why a payload that was submitted by SQL does not match the schema of its topic."""
        return self.payloads.of_topic(self.store.topic_name(topic_no), self.store.payload_schema(topic_no), payload)

    def _tracer(self, provider: TracerProvider | None) -> DispatchTracer:
        try:
            from headgate.ops.tracing import DispatchTracer, provider_of_environment
        except ModuleNotFoundError as error:
            raise InvalidSetting(
                "--tracing", "needs OpenTelemetry, which is not installed", hint="run: pip install 'headgate[tracing]'"
            ) from error
        instance, version = self.options.name, self.options.version
        return DispatchTracer(
            provider or provider_of_environment(instance=instance, version=version),
            topic_name=self.store.topic_name,
            instance=instance,
            version=version,
        )

    @property
    def port(self) -> int:
        """Port of gRPC; 0 until it is open."""
        return self.listeners.port

    @property
    def http_port(self) -> int:
        """Port of the REST API; 0 if there is none."""
        return self.listeners.http_port

    # ------------------------------------------------------------------ life

    async def start(self, *, before_listening: Callable[[], Awaitable[None]] | None = None) -> None:
        """Check, register, open the port. Raises if the database is not fit to serve from."""
        limit_arenas()
        name = self.options.name or f"{socket.gethostname()}-{os.getpid()}"
        async with self.store.lane("tick").use() as db:
            require_durable(await inspect(db), unsafe=self.options.unsafe)
            self.store.checks_durability = not self.options.unsafe
            await check_schema(db)
            tenants = await check_tenants(db)
            # Read before any worker is accepted; without it the gate is not known.
            paused = [(row.tenant_no, row.topic_no) for row in await controls(db) if row.paused]
            quiet, stops = await quiet_set(db), await all_stops(db)
            await ensure_partitions(db)
            await self.store.names.refresh(db)
        if failpoints.armed:
            await failpoints.armed.reach("boot.checked")
        self.gate.set_paused(paused)
        self.gate.set_quiet(quiet)
        self.gate.set_stops(stops)
        self.presence.instance = name
        await self.store.register(name, self.options.version)
        async with self.store.lane("leases").use():
            pass  # open from the beginning: when the database has no connection left, renewals must not be without one
        if before_listening is not None:
            await before_listening()
        if failpoints.armed:
            await failpoints.armed.reach("boot.registered")
        await self.listeners.start(use_cases(self, name=name), rules=self.rules, extra_services=self.extra_services)
        if failpoints.armed:
            await failpoints.armed.reach("boot.listening")
        report_callback_errors(asyncio.get_running_loop(), self.services.failures)
        for title, service in self._services().items():
            self.services.start(title, service.run)
        await self.metrics.start()
        self.accepting = True
        self.health.set(ready=True)
        # Long-lived objects leave the collector's sight; what is left is young, and rarely looked at.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        if self.options.tls_cert is None and not is_loopback(self.options.host):
            log.warning('plaintext effect="the network can read tokens and jobs" host=%s', self.options.host)
        if tenants.level is not Level.OK:
            log.warning("row_security_off found=%s fix=%s", tenants.found, tenants.fix)
        await self.access.report()
        ports = (self.port, self.http_port)
        log.info("ready instance=%s no=%d port=%d http_port=%d", name, self.store.instance_no, *ports)

    def _services(self) -> dict[str, Service]:
        """The background services, by their names in logs and in `_stop`."""
        services: dict[str, Service] = {
            "claims": self.claimer,
            "ticks": self.ticker,
            "scans": self.scanner,
            "announcements": self.wakes,
            "limits": self.limits,
            "outcomes": self.outcomes.writer,
            "unmatched outcomes": self.unmatched_outcomes.writer,
            "submits": self.submitter.writer,
            "locked submits": self.submitter.locked,
            "renewals": self.renewer,
            "lost workers": self.lost_workers,
            "pull workers": self.pulls,
            "results": self.waiters,
            "unblocking": self.unblocker,
            "events": self.events.reader,
            "hints": self.live.reader,
            "progress": self.progress,
            "job logs": self.job_logs,
            "consumers": self.consumers,
            "presence": self.presence,
            "bulk operations": self.bulk_runner,
            "schedules": self.scheduler,
            "webhooks": self.webhooks,
            "upkeep": self.upkeep,
            "latencies": self.latencies,
            "retention": self.retention,
            "durability": DurabilityCheck(self.store),
            "tokens": self.revocation,
            "keys": self.access.keyring,
            "revoked operations": self.revoked_operations,
            "loop lag": self.loop_lag,
            "health": self.readiness,
        }
        if self.access.jwts is not None:
            services["issuers"] = self.access.jwts
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
        self.accepting = False
        self.services.stopping()
        self.draining.set()  # producers are sent away
        self.waiters.stop()
        self.health.drain()
        for service in (
            self.readiness,
            self.claimer,
            self.ticker,
            self.scanner,
            self.wakes,
            self.limits,
            self.listener,
        ):
            service.stop()
        self.lost_workers.stop()
        self.bulk_runner.stop()
        self.scheduler.stop()
        self.webhooks.stop()
        await self.services.finished("claims", STOP_SECONDS)
        self.consumers.stop()  # other instances may have its places: this one claims no more
        self.sessions.drain(int(grace))
        lines = asyncio.create_task(log_drain(self._remaining, grace=grace), name="drain log")
        await self.listeners.stop(grace)
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
        await self.services.finished("webhooks", STOP_SECONDS)
        self.renewer.stop()
        self.latencies.stop()
        self.job_logs.stop()
        await self.services.finished("latencies", STOP_SECONDS)
        await self.services.finished("job logs", STOP_SECONDS)
        await self.services.stop()
        await self.metrics.stop()
        if self.tracer is not None:
            await asyncio.to_thread(self.tracer.close)
        await self.tenant_limits.close()
        await self.store.close()
        log.info("stopped")

    def _remaining(self) -> tuple[int, int]:
        return len(self.sessions), sum(len(session.held) for session in self.sessions)

    @property
    def ready(self) -> bool:
        """Whether it accepts work."""
        return self.health.ready
