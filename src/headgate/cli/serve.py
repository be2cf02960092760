"""`headgate serve`: one instance, or several behind one port, until SIGTERM; a second signal forces the end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from headgate.cli.database import chosen_database
from headgate.cli.values import level_of, seconds
from headgate.domain import limits
from headgate.domain.validation import check_integer, check_lease, check_span, check_text
from headgate.ops import logs
from headgate.ops.settings import Settings, version
from headgate.ops.supervisor import check_processes

GRACE_MAX = timedelta(days=1)


def serve_command(
    *,
    host: str = "127.0.0.1",
    port: int = 7070,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    tls_client_ca: Path | None = None,
    tokens: Path | None = None,
    insecure: bool = False,
    dev: bool = False,
    unsafe: bool = False,
    lease: float = 60,
    grace: float = 30,
    streams_per_peer: int = 10_000,
    pooler: bool = False,
    poll_only: bool = False,
    processes: int = 1,
    name: str = "",
    log_level: str = "INFO",
) -> None:
    """Serve workers and producers over gRPC.

    Parameters
    ----------
    host, port
        Where to listen. Port 0 picks a free one.
    tls_cert, tls_key
        The server's certificate (with its chain) and key as PEM files: clients then use https://. Read again when they
        change.
    tls_client_ca
        Let only clients in whose certificate this authority (a PEM file) has signed.
    tokens
        A JSON file of tokens, readable by its owner only; read again when it changes. See docs/howto/tokens.md.
    insecure
        Accept connections without TLS from other machines: where the network is trusted, or a proxy does TLS.
    dev
        No login, loopback only, reflection on.
    unsafe
        Accept database settings that can lose acknowledged jobs.
    lease
        Default lease in seconds.
    grace
        How long a drain may take, in seconds.
    streams_per_peer
        Most streams that one address may have open at a process; 0 for no limit. Behind a proxy all clients have one.
    pooler
        The database URL goes through a transaction pooler (PgBouncer).
    poll_only
        Use no LISTEN/NOTIFY between instances.
    processes
        How many processes serve the port together, each an instance of its own: for machines with many processors.
    """
    check_integer(port, field="--port", low=0, high=65_535)
    check_text(name, field="--name", low=0, high=limits.WORKER_ID_MAX_CHARS)
    logs.configure(level_of(log_level))
    settings = Settings.from_environ(os.environ)
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
        "grace": check_span(seconds(grace, field="--grace"), field="--grace", low=timedelta(0), high=GRACE_MAX),
        "streams_per_peer": check_integer(streams_per_peer, field="--streams-per-peer", low=0, high=1_000_000),
        "pooler": pooler,
        "notifications": not poll_only,
        "name": name,
        "version": version(),
    }
    # What is imported here is not needed by the other: the parent of several processes has no use for gRPC.
    if check_processes(processes) > 1:
        from headgate.cli.serve_many import serve_many

        sys.exit(asyncio.run(serve_many(settings, options, processes=processes, log_level=log_level)))
    import uvloop

    uvloop.run(_serve(settings, options))


async def _serve(settings: Settings, options: dict[str, object]) -> None:
    from headgate.server import Server, ServerOptions

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        if stop.is_set():
            os._exit(1)  # asked twice: now
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
