"""`headgate serve --processes N`: the parent, which reserves the port, starts the processes and watches over them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta

from headgate.cli.database import chosen_database
from headgate.cli.errors import complain
from headgate.cli.serve_orders import orders
from headgate.ops.port import ReservedPort
from headgate.ops.processes import Processes, StartFailed
from headgate.ops.settings import Settings, version

# -P: not the modules of whatever folder we stand in.
COMMAND = (sys.executable, "-P", "-m", "headgate.cli.serve_process")


async def serve_many(settings: Settings, options: dict[str, object], *, processes: int, log_level: str) -> int:
    """Serve until SIGTERM; the exit code."""
    stop = asyncio.Event()
    crew: Processes | None = None

    def signalled() -> None:
        if stop.is_set():
            if crew is not None:
                crew.kill()
            os._exit(1)  # asked twice: now
        stop.set()

    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, signalled)
    host, port, grace = options["host"], options["port"], options["grace"]
    assert isinstance(host, str) and isinstance(port, int) and isinstance(grace, timedelta)  # noqa: S101, PT018
    reserved = ReservedPort(host, port)
    async with chosen_database(settings.database_url, data=settings.data) as database:
        told = options | {
            "database_url": database.url,
            "direct_database_url": settings.direct_database_url,
            "port": reserved.number,
        }
        crew = Processes(
            COMMAND,
            lambda number: orders(told, number=number, log_level=log_level),
            number=processes,
            grace=grace.total_seconds(),
        )
        try:
            await crew.start(stop)
            if not stop.is_set():
                print(f"headgate {version()} ready on {host}:{reserved.number}", flush=True)
            await crew.run(stop)
        except StartFailed as failure:
            complain(str(failure))
            return failure.code
        except BaseException:
            crew.kill()
            raise
        return 0 if await crew.stop() else 1
