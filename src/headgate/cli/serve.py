"""`headgate serve`: one server process, or several on one port, until SIGTERM; a second signal ends it at once."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from headgate.cli.configured import configured, log_format
from headgate.cli.database import chosen_database, require_choice
from headgate.cli.http_port import http_lines, http_port_of
from headgate.domain.release import version
from headgate.ops import logs
from headgate.ops.configuration import Configuration
from headgate.ops.drain_log import log_second_signal
from headgate.ops.supervisor import check_processes

log = logging.getLogger("headgate.server")
DEV_BANNER = """\
**********************************************************************
*  DEVELOPMENT MODE: no login. Every process on this machine is an   *
*  administrator. Do not store real data here. Loopback only.        *
**********************************************************************"""


@configured("serve")
def serve_command(*, config: Configuration) -> None:
    """Serve workers and producers over gRPC, and the REST API over HTTP."""
    logs.configure(config.text("log_level"), format=log_format(config), redaction=config.redaction)
    require_choice(config, config.database_url)
    options = {**config.server_options(), "http_port": http_port_of(config), "version": version()}
    processes = config.integer("processes")
    # Imported only where needed: the parent of several processes does not use gRPC.
    if check_processes(processes) > 1:
        from headgate.cli.serve_many import serve_many

        log_options = {name: config.text(name) for name in ("log_level", "log_format")}
        sys.exit(asyncio.run(serve_many(config, options, processes=processes, log_options=log_options)))
    import uvloop

    uvloop.run(_serve(config, options))


async def _serve(config: Configuration, options: dict[str, object]) -> None:
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
    async with chosen_database(config.database_url, data=config.data) as database:
        server = Server(
            ServerOptions(database_url=database.url, direct_database_url=config.direct_database_url, **options)  # type: ignore[arg-type]
        )
        await server.start()
        if server.options.dev and server.options.tokens_file is None:
            if log_format(config) == "json":  # then every line is read by a program
                log.warning('dev_mode effect="no login: every process on this machine is an administrator"')
            else:
                print(DEV_BANNER, flush=True)
        if server.http_port:
            of = server.options
            found = http_lines(
                host=of.host, port=server.http_port, tls=of.tls_cert is not None, dashboard=not of.no_dashboard
            )
            print(*found, sep="\n")
        print(f"headgate {version()} ready on {server.options.host}:{server.port}", flush=True)
        try:
            await server.run(stop)
        finally:
            await server.stop()
