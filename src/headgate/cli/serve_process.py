"""One process of `headgate serve --processes N`, started by its parent as `python -m headgate.cli.serve_process`."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any, cast

import msgspec

from headgate.cli.errors import BUG, bug_text, exit_code
from headgate.domain.errors import HeadgateError
from headgate.domain.redaction import Redaction
from headgate.ops import logs
from headgate.ops.child import Parent
from headgate.server import Server, ServerOptions

REPORT_SECONDS = 1.0
MOVE_SECONDS = 2
"""A worker that moves to another process has this long to finish jobs here; it keeps the jobs that still run."""


class StoppedEarly(Exception):
    """The stop came before the port was open."""


def options_of(message: dict[str, object]) -> ServerOptions:
    """Return the server options of a start message."""
    return msgspec.convert(message["options"], ServerOptions, strict=False, dec_hook=_path)


def main() -> int:
    """Serve until SIGTERM, or until the parent has ended."""
    import uvloop

    parent = Parent()
    message = parent.start_message
    style = cast("logs.LogFormat", message["log_format"])
    options = options_of(message)
    logs.configure(
        str(message["log_level"]), format=style, process=message["number"], redaction=Redaction.of(options.redact)
    )
    try:
        uvloop.run(_serve(parent, options))
    except HeadgateError as error:
        parent.failed(str(error), exit_code(error))
        return exit_code(error)
    except Exception as error:  # noqa: BLE001 - the outermost level: the parent prints or logs it
        parent.failed(bug_text(error), BUG)
        return BUG
    return 0


async def _serve(parent: Parent, options: ServerOptions) -> None:
    stop = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        # Repeated signals change nothing: only the parent can force an exit.
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    server = Server(options)
    parent.watch(
        grace=options.grace.total_seconds(), on_move=lambda number: server.sessions.send_on(number, MOVE_SECONDS)
    )

    async def wait_for_the_others() -> None:
        if not await parent.wait_to_listen(stop):
            raise StoppedEarly

    async def report_sessions() -> None:
        while True:
            parent.report_sessions(len(server.sessions))
            await asyncio.sleep(REPORT_SECONDS)

    try:
        await server.start(before_listening=wait_for_the_others)
    except StoppedEarly:
        await server.stop(drain=False)
        return
    parent.ready()
    server.services.start("report sessions", report_sessions)
    try:
        await server.run(stop)
    finally:
        await server.stop()


def _path(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(kind)


if __name__ == "__main__":
    sys.exit(main())
