"""`headgate serve`: one server process, or several on one port, until SIGTERM; a second signal ends it at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headgate.cli.database import chosen_database, require_choice
from headgate.cli.options import Embedded, LogFormat, LogLevel, ServedDatabaseUrl
from headgate.cli.values import level_of, seconds
from headgate.domain import limits
from headgate.domain.release import version
from headgate.domain.validation import check_integer, check_lease, check_span, check_text
from headgate.ops import logs
from headgate.ops.drain_log import log_second_signal
from headgate.ops.settings import Settings
from headgate.ops.supervisor import check_processes

GRACE_MAX = timedelta(days=1)


def serve_command(
    *,
    host: Annotated[str, Parameter(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="Port to listen on. 0 picks a free port.")] = 7070,
    tls_cert: Annotated[
        Path | None,
        Parameter(help="Server certificate with its chain (PEM); clients use https://. Reloaded on change."),
    ] = None,
    tls_key: Annotated[Path | None, Parameter(help="Key of the server certificate (PEM). Reloaded on change.")] = None,
    tls_client_ca: Annotated[
        Path | None, Parameter(help="Require client certificates signed by this authority (PEM).")
    ] = None,
    tokens: Annotated[
        Path | None,
        Parameter(
            help="JSON file with tokens, readable by its owner only. Reloaded on change. See docs/howto/tokens.md."
        ),
    ] = None,
    insecure: Annotated[
        bool,
        Parameter(help="Accept remote connections without TLS: on a trusted network, or behind a proxy that does TLS."),
    ] = False,
    dev: Annotated[bool, Parameter(help="Development: no tokens, loopback only, gRPC reflection.")] = False,
    unsafe: Annotated[bool, Parameter(help="Accept database settings that can lose acknowledged jobs.")] = False,
    lease: Annotated[float, Parameter(help="Default lease in seconds.")] = 60,
    reconnect_grace: Annotated[
        float | None,
        Parameter(
            help="Seconds a worker has to reconnect after its connection was lost, before its jobs run again. Must be "
            "shorter than the lease. Default: 10, or the lease if that is not longer."
        ),
    ] = None,
    grace: Annotated[float, Parameter(help="Maximum duration of a drain in seconds.")] = 30,
    streams_per_peer: Annotated[
        int,
        Parameter(help="Maximum open streams per client address and process; 0: no limit. A proxy is one address."),
    ] = 10_000,
    pooler: Annotated[bool, Parameter(help="The database URL points to a transaction pooler (PgBouncer).")] = False,
    poll_only: Annotated[bool, Parameter(help="Do not use LISTEN/NOTIFY between instances.")] = False,
    processes: Annotated[
        int, Parameter(help="Number of server processes on the port, each an instance; about one per processor.")
    ] = 1,
    name: Annotated[str, Parameter(help="Name of this instance. Default: host name and process id.")] = "",
    database_url: ServedDatabaseUrl = None,
    embedded: Embedded = False,
    log_level: LogLevel = "INFO",
    log_format: LogFormat = "text",
) -> None:
    """Serve workers and producers over gRPC."""
    check_integer(port, field="--port", low=0, high=65_535)
    check_text(name, field="--name", low=0, high=limits.WORKER_ID_MAX_CHARS)
    logs.configure(level_of(log_level), format=log_format)
    settings = Settings.from_environ(os.environ).with_database(database_url)
    require_choice(settings.database_url, settings, embedded=embedded)
    options: dict[str, object] = {
        "host": host,
        "port": port,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_client_ca": tls_client_ca,
        "tokens_file": tokens,
        "insecure": insecure,
        "dev": dev,
        "unsafe": unsafe,
        "lease": check_lease(seconds(lease, field="--lease"), field="--lease"),
        "reconnect_grace": None
        if reconnect_grace is None
        else check_span(
            seconds(reconnect_grace, field="--reconnect-grace"),
            field="--reconnect-grace",
            low=limits.LEASE_MIN,
            high=limits.LEASE_MAX,
        ),
        "grace": check_span(seconds(grace, field="--grace"), field="--grace", low=timedelta(0), high=GRACE_MAX),
        "streams_per_peer": check_integer(streams_per_peer, field="--streams-per-peer", low=0, high=1_000_000),
        "pooler": pooler,
        "notifications": not poll_only,
        "name": name,
        "version": version(),
    }
    # Imported only where needed: the parent of several processes does not use gRPC.
    if check_processes(processes) > 1:
        from headgate.cli.serve_many import serve_many

        log_options = {"log_level": log_level.upper(), "log_format": log_format}
        sys.exit(asyncio.run(serve_many(settings, options, processes=processes, log_options=log_options)))
    import uvloop

    uvloop.run(_serve(settings, options))


async def _serve(settings: Settings, options: dict[str, object]) -> None:
    from headgate.server import Server, ServerOptions

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        if stop.is_set():
            log_second_signal()
            os._exit(1)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled)
    async with chosen_database(settings.database_url, data=settings.data) as database:
        server = Server(
            ServerOptions(database_url=database.url, direct_database_url=settings.direct_database_url, **options)  # type: ignore[arg-type]
        )
        await server.start()
        print(f"headgate {version()} ready on {server.options.host}:{server.port}", flush=True)
        try:
            await server.run(stop)
        finally:
            await server.stop()
