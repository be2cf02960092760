"""The gRPC services on their port, composed from the use cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import grpc

from headgate.api.grpc import admin_service
from headgate.api.grpc.batch_service import BatchService, batch_methods
from headgate.api.grpc.bulk_service import BulkService, bulk_methods
from headgate.api.grpc.client_certificates import ClientCertificates
from headgate.api.grpc.event_service import EventService, event_methods
from headgate.api.grpc.guard import Guard
from headgate.api.grpc.health import Health
from headgate.api.grpc.key_service import KeyService, key_methods
from headgate.api.grpc.peers import PeerStreams
from headgate.api.grpc.port import new_server
from headgate.api.grpc.producer_service import ProducerService, producer_methods
from headgate.api.grpc.reflection import Reflection
from headgate.api.grpc.schedule_service import ScheduleService, schedule_methods
from headgate.api.grpc.stats_service import StatsService, stats_methods
from headgate.api.grpc.tenant_service import TenantService, tenant_methods
from headgate.api.grpc.topic_service import TopicService
from headgate.api.grpc.topic_service import methods as topic_methods
from headgate.api.grpc.webhook_service import WebhookService, webhook_methods
from headgate.api.grpc.worker_service import WorkerService, worker_methods
from headgate.api.use_cases import UseCases
from headgate.control.permissions import REFLECTION, Rule

SERVICES: Final = (
    "headgate.v1.WorkerService",
    "headgate.v1.ProducerService",
    admin_service.NAME,
    "headgate.v1.BatchService",
    "headgate.v1.BulkService",
    "headgate.v1.EventService",
    "headgate.v1.KeyService",
    "headgate.v1.TenantService",
    "headgate.v1.ScheduleService",
    "headgate.v1.StatsService",
    "headgate.v1.TopicService",
    "headgate.v1.WebhookService",
)
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
    server.add_generic_rpc_handlers(
        (
            worker_methods(worker, peers),
            producer_methods(producer, peers),
            admin_service.methods(cases.admin, cases.system, cases.jobs),
            batch_methods(BatchService(cases.batches)),
            bulk_methods(BulkService(cases.bulk)),
            event_methods(EventService(cases.events)),
            key_methods(KeyService(cases.keys, cases.web_sessions)),
            tenant_methods(TenantService(cases.tenants)),
            schedule_methods(ScheduleService(cases.schedules)),
            stats_methods(StatsService(cases.stats)),
            topic_methods(TopicService(cases.topics, cases.policies)),
            webhook_methods(WebhookService(cases.webhooks)),
            health.methods(PeerStreams(WATCHES_PER_PEER), peers),
            *extra_services,
        )
    )
    if dev:
        server.add_generic_rpc_handlers((Reflection(SERVICES).methods(peers),))
    return server
