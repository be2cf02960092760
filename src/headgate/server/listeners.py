"""The listeners of an instance: gRPC, and the REST API with the dashboard on a port of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import grpc

from headgate.api.grpc.client_certificates import ClientCertificates
from headgate.api.grpc.health import Health
from headgate.api.grpc.listener import grpc_server
from headgate.api.grpc.port import bind
from headgate.api.grpc.worker_service import WorkerService
from headgate.api.tls import Tls
from headgate.api.use_cases import UseCases
from headgate.control.permissions import Rule
from headgate.ops.files import connections_allowed
from headgate.ops.port import listening_sockets
from headgate.server.options import ServerOptions
from headgate.store.dispatch_store import DispatchStore

if TYPE_CHECKING:
    from litestar.types import ASGIApp

    from headgate.api.http.listener import HttpListener

HTTP_CONNECTIONS_MAX: Final = 10_000


class Listeners:
    """Both of them; they start and stop together."""

    def __init__(self, options: ServerOptions, health: Health, store: DispatchStore) -> None:
        self._options, self._health, self._store = options, health, store
        self.port = self.http_port = 0
        self._grpc: grpc.aio.Server | None = None
        self._watching: asyncio.Task[None] | None = None
        self._http: HttpListener | None = None

    async def start(
        self, cases: UseCases, *, rules: Mapping[str, Rule], extra_services: tuple[grpc.GenericRpcHandler, ...]
    ) -> None:
        """Open the ports. Raises if one of them is in use."""
        options = self._options
        tls = Tls.of(options.tls_cert, options.tls_key, options.tls_client_ca)
        connections = connections_allowed()
        of_http = 0 if options.http_port is None else min(HTTP_CONNECTIONS_MAX, connections // 4)
        worker = WorkerService(
            cases.sessions,
            uuids=self._store.uuids,
            topics=self._store,
            instance=cases.instance,
            version=options.version,
        )
        certificates = None if tls is None or tls.client_ca is None else ClientCertificates(tls.client_ca)
        server = grpc_server(
            cases,
            worker,
            self._health,
            rules=rules,
            shared_port=options.shared_port,
            connections=connections - of_http,
            streams_per_peer=options.streams_per_peer,
            dev=options.dev,
            certificates=certificates,
            extra_services=extra_services,
        )
        self.port = bind(server, options.host, options.port, tls)
        await server.start()
        self._grpc = server
        if certificates is not None:
            self._watching = asyncio.create_task(certificates.run(), name="watch client certificates")
        if options.http_port is not None:
            # Imported only where it is served: that takes as long as the rest of a start.
            from headgate.api.http.app import new_app
            from headgate.api.http.edge import Split
            from headgate.api.http.listener import HttpListener

            app: ASGIApp = new_app(cases, dev=options.dev, metrics_open=cases.metrics.is_open)
            if not options.no_dashboard:
                from headgate.web import app as web

                app = Split(web.new_app(cases), app, serves=web.serves)
            http = HttpListener(app, tls=tls, connections=of_http)
            sockets = listening_sockets(options.host, options.http_port, shared=options.shared_port)
            self.http_port = await http.start(sockets)
            self._http = http

    async def stop(self, grace: float) -> None:
        """Refuse new calls at once; requests and streams may go on until the grace is over."""
        if self._watching is not None:
            self._watching.cancel()
        port, self._grpc = self._grpc, None  # grpc.aio crashes the process when a server is stopped twice
        http, self._http = self._http, None
        http_stopped = None if http is None else asyncio.create_task(http.stop(grace), name="http drain")
        if port is not None:
            await port.stop(grace)
        if http_stopped is not None:
            await http_stopped
