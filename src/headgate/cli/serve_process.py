"""One process of `headgate serve --processes N`. Run by its parent only, as `python -m headgate.cli.serve_process`."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from headgate.cli.errors import BUG, bug_text, exit_code
from headgate.domain.errors import HeadgateError
from headgate.ops import logs
from headgate.ops.child import Parent
from headgate.server import Server, ServerOptions

COUNT_SECONDS = 1.0
MOVE_SECONDS = 2
"""A worker that goes to another process finishes here what ends by then; what still runs, it takes along."""


class StoppedEarly(Exception):
    """A stop came before the port was open."""


def options_of(orders: dict[str, object]) -> ServerOptions:
    """What `supervisor_commands` said, as the server takes it."""
    return msgspec.convert(orders["options"], ServerOptions, strict=False, dec_hook=_path)


def main() -> int:
    """Serve until SIGTERM, or until the parent is gone."""
    import uvloop

    parent = Parent()
    number, level = parent.orders["number"], str(parent.orders["log_level"])
    logs.configure(level, process=number)
    try:
        uvloop.run(_serve(parent, options_of(parent.orders)))
    except HeadgateError as error:
        parent.failed(str(error), exit_code(error))
        return exit_code(error)
    except Exception as error:  # noqa: BLE001 - the outermost place: the parent tells it, or logs it
        parent.failed(bug_text(error), BUG)
        return BUG
    return 0


async def _serve(parent: Parent, options: ServerOptions) -> None:
    stop = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        # However often it comes: only the parent may force an end.
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    server = Server(options)
    parent.watch(
        grace=options.grace.total_seconds(), on_send_on=lambda number: server.sessions.send_on(number, MOVE_SECONDS)
    )

    async def when_all_are_prepared() -> None:
        if not await parent.go(stop):
            raise StoppedEarly

    async def count_links() -> None:
        while True:
            parent.has_links(len(server.sessions))
            await asyncio.sleep(COUNT_SECONDS)

    try:
        await server.start(before_listening=when_all_are_prepared)
    except StoppedEarly:
        await server.stop(drain=False)
        return
    parent.ready()
    server.services.start("count links", count_links)
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
