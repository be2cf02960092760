"""`headgate serve --processes N`: the parent, which reserves the port, starts the processes and supervises them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from headgate.cli.database import chosen_database
from headgate.cli.errors import print_error
from headgate.cli.http_port import http_lines
from headgate.domain.release import version
from headgate.ops.configuration import Configuration
from headgate.ops.drain_log import log_second_signal
from headgate.ops.port import ReservedPort
from headgate.ops.supervisor import ProcessSupervisor, StartFailed

# -P: do not import modules from the current folder.
COMMAND = (sys.executable, "-P", "-m", "headgate.cli.serve_process")


async def serve_many(
    config: Configuration, options: dict[str, object], *, processes: int, log_options: Mapping[str, str]
) -> int:
    """Serve until SIGTERM; return the exit code."""
    # For sockets between the processes; only this user can enter it.
    with TemporaryDirectory(prefix="headgate-") as folder:
        shared: dict[str, object] = {"processes": processes, "processes_folder": Path(folder)}
        return await _supervise(config, options | shared, processes=processes, log_options=log_options)


async def _supervise(
    config: Configuration, options: dict[str, object], *, processes: int, log_options: Mapping[str, str]
) -> int:
    stop = asyncio.Event()
    supervisor: ProcessSupervisor | None = None

    def signalled() -> None:
        if stop.is_set():
            log_second_signal()
            if supervisor is not None:
                supervisor.kill()
            os._exit(1)
        stop.set()

    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, signalled)
    host, port, grace = options["host"], options["port"], options["grace"]
    assert isinstance(host, str) and isinstance(port, int) and isinstance(grace, timedelta)  # noqa: S101, PT018
    http_port = options["http_port"]
    assert http_port is None or isinstance(http_port, int)  # noqa: S101
    reserved = ReservedPort(host, port)
    reserved_http = None if http_port is None else ReservedPort(host, http_port, setting="--http-port")
    async with chosen_database(config.database_url, data=config.data) as database:
        server_options = options | {
            "database_url": database.url,
            "direct_database_url": config.direct_database_url,
            "port": reserved.number,
            "http_port": None if reserved_http is None else reserved_http.number,
        }
        supervisor = ProcessSupervisor(
            COMMAND,
            lambda number: start_message(server_options, number=number, log_options=log_options),
            number=processes,
            grace=grace.total_seconds(),
        )
        try:
            await supervisor.start(stop)
            if not stop.is_set() and reserved_http is not None:
                found = http_lines(
                    host=host,
                    port=reserved_http.number,
                    tls=options["tls_cert"] is not None,
                    dashboard=not options["no_dashboard"],
                )
                print(*found, sep="\n")
            if not stop.is_set():
                print(f"headgate {version()} ready on {host}:{reserved.number}", flush=True)
            await supervisor.run(stop)
        except StartFailed as failure:
            print_error(str(failure))
            return failure.code
        except BaseException:
            supervisor.kill()
            raise
        return 0 if await supervisor.stop() else 1


def start_message(options: dict[str, object], *, number: int, log_options: Mapping[str, str]) -> dict[str, object]:
    """The first message to the process with this number (from 1), as plain JSON. A given name gets the number too."""
    name = f"{options['name']}-{number}" if options["name"] else ""
    plain = {key: _plain(value) for key, value in options.items()}
    return {
        "number": number,
        **log_options,
        "options": plain | {"name": name, "shared_port": True, "process": number},
    }


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    return value.total_seconds() if isinstance(value, timedelta) else value
