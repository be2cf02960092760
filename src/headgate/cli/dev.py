"""`headgate dev`: an embedded PostgreSQL, migrated and checked, and a server on loopback, until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headgate import embedded
from headgate.cli.database import Database, chosen_database, connected
from headgate.cli.found_apps import find_apps
from headgate.cli.migrate import reporter
from headgate.cli.options import DevDatabaseUrl, LogFormat, LogLevel
from headgate.cli.values import level_of
from headgate.domain.errors import InvalidInput
from headgate.domain.release import version
from headgate.ops import logs
from headgate.ops.drain_log import log_second_signal
from headgate.ops.port import ReservedPort
from headgate.ops.settings import Settings
from headgate.server import Server, ServerOptions
from headgate.store.migrate import migrate, plan
from headgate.store.preflight import Durability, inspect, require_durable


def dev_command(
    *,
    port: Annotated[int, Parameter(help="Port of the server. 0 picks a free port.")] = 7070,
    data: Annotated[
        str,
        Parameter(help="Folder of the embedded PostgreSQL. Default: HEADGATE_DATA, else ./.headgate/postgres."),
    ] = "",
    unsafe: Annotated[bool, Parameter(help="Accept database settings that can lose acknowledged jobs.")] = False,
    database_url: DevDatabaseUrl = None,
    log_level: LogLevel = "INFO",
    log_format: LogFormat = "text",
) -> None:
    """Start an embedded PostgreSQL (or use HEADGATE_DATABASE_URL), migrate it, and serve on loopback until Ctrl-C.

    The data stays in its folder, and one `headgate dev` uses a folder at a time.
    """
    logs.configure(level_of(log_level), format=log_format)
    settings = Settings.from_environ(os.environ).with_database(database_url)
    if data and settings.database_url:
        raise InvalidInput("--data", "is for the embedded PostgreSQL", hint="pass no other database")
    folder = embedded.whole_path(Path(data)) if data else settings.data or embedded.default_data_dir()
    with ExitStack() as held:
        reservation = held.enter_context(embedded.reserved(folder)) if settings.database_url is None else None
        if port:  # before a cluster is created and migrated
            ReservedPort("127.0.0.1", port).close()
        asyncio.run(_run(settings, folder, reservation, port=port, unsafe=unsafe))


async def _run(
    settings: Settings, folder: Path, reservation: embedded.Reservation | None, *, port: int, unsafe: bool
) -> None:
    began = time.monotonic()
    stop = _stop_signal()
    async with chosen_database(settings.database_url, data=folder) as database:
        async with connected(database, command="dev") as connection:
            durability = await inspect(connection)
            require_durable(durability, unsafe=unsafe)
            await migrate(connection, progress=reporter())
            schema = (await plan(connection)).version
        server = Server(
            ServerOptions(
                database_url=database.url,
                direct_database_url=settings.direct_database_url,
                port=port,
                dev=True,
                unsafe=unsafe,
                grace=timedelta(seconds=5),
                version=version(),
            )
        )
        await server.start()
        address = f"127.0.0.1:{server.port}"
        if reservation is not None:
            reservation.note(f"serving on {address}")
        for line in (*banner(database, durability, schema=schema, address=address), *suggestions(Path.cwd())):
            print(line)
        print(f"ready in {time.monotonic() - began:.1f} s   (Ctrl-C stops)", flush=True)
        try:
            await server.run(stop)
        finally:
            print("stopping", flush=True)
            await server.stop()
    print("stopped", flush=True)


def _stop_signal() -> asyncio.Event:
    """Return an event set at the first SIGINT or SIGTERM; a second signal ends the process."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        if stop.is_set():
            log_second_signal()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            signal.raise_signal(signal.SIGINT)  # ends the embedded PostgreSQL as well
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled)
    return stop


def banner(database: Database, durability: Durability, *, schema: int, address: str) -> list[str]:
    """Return what a developer needs next: the location of the data, its durability, how to connect."""
    cluster = database.cluster
    kind = "embedded" if cluster is not None else database.title
    safety = f"fsync {durability.fsync}, synchronous_commit {durability.synchronous_commit}"
    data = "" if cluster is None else f", data in {_short(cluster.data)}"
    lines = [
        f"headgate dev {version()}  (development mode: loopback only, no login{data})",
        f"  grpc       {address}" + ("" if address.endswith(":7070") else f"   export HEADGATE_URL={address}"),
        f"  database   PostgreSQL {durability.server_version} ({kind})   {safety}",
        f"  schema     migration {schema}",
    ]
    if cluster is not None:
        lines += [
            f"  connect    export HEADGATE_DATABASE_URL={shlex.quote(database.owner_url)}",
            f"             {shlex.quote(_psql())} {shlex.quote(database.owner_url)}",
            f"  log        {_short(cluster.log)}",
        ]
    # A given URL is not printed: it may contain a password.
    lines += [f"  warning    {problem}" for problem in durability.problems]
    return lines


def suggestions(folder: Path) -> list[str]:
    """Return commands that work here: with the handlers of the code in this folder, else how to get some."""
    apps = find_apps(folder)
    if not apps:
        return ["  try        headgate init hello      (writes a small app into ./hello; your own: see the README)"]
    lines = [f"  try        headgate worker {shlex.quote(apps[0].target)} --reload"]
    known = [topic for topic in apps[0].topics if topic.arguments is not None]
    return [*lines, *(f"             {topic.command}" for topic in known[:1])]


def _psql() -> str:
    """Return psql on the path, else the one beside the embedded server."""
    if shutil.which("psql"):
        return "psql"
    beside = embedded.find_binaries().bin_dir / "psql"
    return str(beside) if beside.exists() else "psql"


def _short(path: Path) -> str:
    try:
        return f".{os.sep}{path.relative_to(Path.cwd())}"
    except ValueError:
        return str(path)
