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
from importlib.util import find_spec
from pathlib import Path

from headgate import embedded
from headgate.cli.configured import client_configuration, configured, log_format
from headgate.cli.database import Database, chosen_database, connected
from headgate.cli.found_apps import find_apps
from headgate.cli.http_port import http_port_of, http_url
from headgate.cli.migrate import reporter
from headgate.cli.output import duration
from headgate.domain.durability import Durability
from headgate.domain.errors import InvalidInput, InvalidSetting
from headgate.domain.release import version
from headgate.ops import logs
from headgate.ops.configuration import Configuration, Origin
from headgate.ops.drain_log import log_second_signal
from headgate.ops.port import ReservedPort
from headgate.server import Server, ServerOptions
from headgate.store.migrate import migrate, plan
from headgate.store.preflight import inspect, require_durable


@configured("dev")
def dev_command(*, config: Configuration) -> None:
    """Start an embedded PostgreSQL (or use HEADGATE_DATABASE_URL), migrate it, and serve on loopback until Ctrl-C.

    The data stays in its folder, and one `headgate dev` uses a folder at a time.
    """
    logs.configure(config.text("log_level"), format=log_format(config), redaction=config.redaction)
    if config.values["data"].origin is Origin.FLAG and config.database_url:
        raise InvalidInput("--data", "is for the embedded PostgreSQL", hint="pass no other database")
    folder = embedded.default_data_dir() if config.data is None else embedded.whole_path(config.data)
    port, rest = config.integer("port"), http_port_of(config)
    with ExitStack() as held:
        reservation = held.enter_context(embedded.reserved(folder)) if config.database_url is None else None
        if port:  # before a cluster is created and migrated
            ReservedPort("127.0.0.1", port).close()
        if rest:
            ReservedPort("127.0.0.1", rest, setting="--http-port").close()
        asyncio.run(_run(config, folder, reservation))


async def _run(config: Configuration, folder: Path, reservation: embedded.Reservation | None) -> None:
    began = time.monotonic()
    stop = _stop_signal()
    async with chosen_database(config.database_url, data=folder) as database:
        if not stop.is_set():  # Ctrl-C while PostgreSQL starts, as below while it is migrated
            await _serve(config, database, reservation, stop, began=began)
    print("stopped", flush=True)


async def _serve(
    config: Configuration,
    database: Database,
    reservation: embedded.Reservation | None,
    stop: asyncio.Event,
    *,
    began: float,
) -> None:
    async with connected(database, command="dev") as connection:
        durability = await inspect(connection)
        require_durable(durability, unsafe=config.switch("unsafe"))
        await migrate(connection, progress=reporter())
        schema = (await plan(connection)).version
    if stop.is_set():
        return
    server = Server(
        ServerOptions(
            database_url=database.url,
            direct_database_url=config.direct_database_url,
            port=config.integer("port"),
            http_port=http_port_of(config),
            no_dashboard=config.switch("no_dashboard"),
            dev=True,
            unsafe=config.switch("unsafe"),
            grace=timedelta(seconds=5),
            redact=tuple(config.names("redact")),
            version=version(),
        )
    )
    await server.start()
    address = f"127.0.0.1:{server.port}"
    rest = http_url(host="127.0.0.1", port=server.http_port, tls=False) if server.http_port else ""
    if reservation is not None:
        reservation.note(f"serving on {address}")
    for line in (
        *banner(
            database,
            durability,
            schema=schema,
            address=address,
            rest=rest,
            dashboard=rest if not config.switch("no_dashboard") else "",
        ),
        *suggestions(Path.cwd()),
        *(["             headgate top             (what happens, in this terminal)"] if find_spec("textual") else []),
        *profile_note(address),
    ):
        print(line)
    print(f"ready in {duration(timedelta(seconds=time.monotonic() - began))}   (Ctrl-C stops)", flush=True)
    try:
        await server.run(stop)
    finally:
        if not stop.is_set():
            print("stopping", flush=True)
        await server.stop()


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
        print("stopping", flush=True)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled)
    return stop


def banner(
    database: Database, durability: Durability, *, schema: int, address: str, rest: str, dashboard: str
) -> list[str]:
    """Return what a developer needs next: where everything is, how durable the data is, how to connect."""
    cluster = database.cluster
    kind = "embedded" if cluster is not None else database.title
    safety = f"fsync {durability.fsync}, synchronous_commit {durability.synchronous_commit}"
    data = "" if cluster is None else f", data in {_short(cluster.data)}"
    lines = [
        f"headgate dev {version()}  (development mode: loopback only, no login{data})",
        *([f"  dashboard  {dashboard}"] if dashboard else []),
        f"  grpc       {address}" + ("" if address.endswith(":7070") else f"   export HEADGATE_URL={address}"),
        *([f"  rest       {rest}   (try it: {rest}/docs)"] if rest else []),
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


def profile_note(address: str) -> list[str]:
    """Return how to reach this server with commands, if a profile leads them to another one."""
    try:
        config = client_configuration()
    except InvalidSetting:  # the commands themselves report it
        return []
    if config.values["url"].origin is not Origin.PROFILE:
        return []
    used = f"{config.text('profile')} is in use, so commands call {config.text('url')}"
    return [f"  profile    {used}; for this server: export HEADGATE_URL={address}"]


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
