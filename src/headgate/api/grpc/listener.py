"""The gRPC services on their port, composed from the use cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import grpc

from headgate.api.grpc import producer_service, worker_service
from headgate.api.grpc.admin_service import AdminService
from headgate.api.grpc.batch_service import BatchService
from headgate.api.grpc.bulk_service import BulkService
from headgate.api.grpc.client_certificates import ClientCertificates
from headgate.api.grpc.event_service import EventService
from headgate.api.grpc.guard import Guard
from headgate.api.grpc.health import Health
from headgate.api.grpc.key_service import KeyService
from headgate.api.grpc.methods import UnaryService, unary_service
from headgate.api.grpc.peers import PeerStreams
from headgate.api.grpc.port import new_server
from headgate.api.grpc.producer_service import ProducerService, producer_methods
from headgate.api.grpc.reflection import Reflection
from headgate.api.grpc.schedule_service import ScheduleService
from headgate.api.grpc.stats_service import StatsService
from headgate.api.grpc.tenant_service import TenantService
from headgate.api.grpc.topic_service import TopicService
from headgate.api.grpc.webhook_service import WebhookService
from headgate.api.grpc.worker_service import WorkerService, worker_methods
from headgate.api.use_cases import UseCases
from headgate.control.permissions import REFLECTION, Rule

WATCHES_PER_PEER: Final = 100
"""Health.Watch needs no token, so it has a bound of its own, besides the one on all streams."""


def grpc_server(
    cases: UseCases,
    worker: WorkerService,
    health: Health,
    *,
    rules: Mapping[str, Rule],
    shared_port: bool,
    connections: int,
    streams_per_peer: int,
    dev: bool,
    certificates: ClientCertificates | None = None,
    extra_services: tuple[grpc.GenericRpcHandler, ...] = (),
) -> grpc.aio.Server:
    """All services of one instance; no port is open yet."""
    producer = ProducerService(
        submits=cases.submits,
        jobs=cases.jobs,
        validator=cases.validator,
        calls=cases.calls,
        instance=cases.instance,
        version=cases.version,
        draining=cases.draining,
    )
    guard = Guard(
        cases.validator, {**rules, **REFLECTION} if dev else rules, cases.failed_logins, cases.rates, certificates
    )
    server = new_server(guard, shared_port=shared_port, connections=connections)
    peers = PeerStreams(streams_per_peer)
    services: tuple[UnaryService, ...] = (
        AdminService(cases.admin, cases.system, cases.jobs),
        BatchService(cases.batches),
        BulkService(cases.bulk),
        EventService(cases.events),
        KeyService(cases.keys, cases.web_sessions),
        TenantService(cases.tenants),
        ScheduleService(cases.schedules),
        StatsService(cases.stats),
        TopicService(cases.topics, cases.policies),
        WebhookService(cases.webhooks),
    )
    server.add_generic_rpc_handlers(
        (
            worker_methods(worker, peers),
            producer_methods(producer, peers),
            *map(unary_service, services),
            health.methods(PeerStreams(WATCHES_PER_PEER), peers),
            *extra_services,
        )
    )
    if dev:
        names = (worker_service.NAME, producer_service.NAME, *(one.protocol.full_name for one in services))
        server.add_generic_rpc_handlers((Reflection(names).methods(peers),))
    return server
