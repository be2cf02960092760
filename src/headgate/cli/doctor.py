"""`headgate doctor`: check the database, this machine and the settings of a server, and print the fix of each problem.

Exit code: 0 if nothing is wrong, 10 if there are only warnings, 1 if a check fails.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import parse_qs, urlsplit

from cyclopts import Parameter

from headgate import embedded
from headgate.cli.configured import configured
from headgate.cli.database import Database, chosen_database, require_choice
from headgate.cli.doctor_load import load_lines, load_report
from headgate.cli.http_port import http_port_of
from headgate.cli.options import Output
from headgate.cli.output import for_people, print_lines, print_list, print_one
from headgate.domain.diagnosis import Finding, Level, fail, ok, skip, worst
from headgate.domain.errors import HeadgateError, InvalidInput, StoreError
from headgate.domain.load import LoadReport
from headgate.domain.units import duration
from headgate.ops.configuration import Configuration
from headgate.ops.diagnosis import (
    check_certificate,
    check_disk,
    check_files,
    check_port,
    check_secret_file,
    open_files_limit,
    utc_now,
)
from headgate.ops.exposure import is_loopback
from headgate.ops.supervisor import check_processes
from headgate.store import diagnosis
from headgate.store.connect import Connection, connect
from headgate.store.dispatch_store import DispatchStore
from headgate.store.lane import transaction
from headgate.store.pooling import check_pooler

EXIT_CODES: Final = {Level.OK: 0, Level.WARN: 10, Level.FAIL: 1}
_DATABASE_CHECKS: Final = (
    *("durability", "standby", "clock", "migrations", "role", "tenants", "connections", "vacuum", "snapshots", "disk"),
    "pooler",
)

_UNREACHABLE: Final = "check the address, and that PostgreSQL is running"


@configured("doctor", reads_also="serve")
def doctor_command(
    *,
    load: Annotated[
        str | None, Parameter(help="Watch the database for this long instead, such as 10s, and say what limits it.")
    ] = None,
    output: Output = "table",
    config: Configuration,
) -> None:
    """Check the database, this machine and the settings of a server, and print the fix of each problem.

    It reads the settings that `headgate serve` would use, and changes nothing. Exit code: 0 if nothing is wrong, 10 if
    there are only warnings, 1 if a check fails.
    """
    if load is not None:
        report = asyncio.run(_load(config, duration(load, field="--load")))
        print_one(report, output, lambda: load_lines(report))
        return
    findings = asyncio.run(all_findings(config))
    if for_people(output):
        print_lines(_lines(findings))
    else:
        print_list(findings, output, {}, name=lambda one: f"{one.check} {one.level}", empty="")
    if code := EXIT_CODES[worst(findings)]:
        sys.exit(code)


async def _load(config: Configuration, span: timedelta) -> LoadReport:
    require_choice(config, config.database_url)
    if _is_missing(config):
        raise InvalidInput(
            "--load", "needs a database, and the embedded PostgreSQL is not created yet; serve creates it"
        )
    async with chosen_database(config.database_url, data=config.data) as database:
        return await load_report(database.url, span=span)


def _lines(findings: Iterable[Finding]) -> Iterator[str]:
    for one in findings:
        yield f"{one.level:<5} {one.check:<12} {one.found}"
        if one.fix:
            yield f"{'':5} {'':12} fix: {one.fix}"


async def all_findings(config: Configuration) -> list[Finding]:
    """Every check: first this machine, then the database."""
    return [*host_findings(config), *await database_findings(config)]


# ---------------------------------------------------------------------- this machine


def host_findings(config: Configuration) -> list[Finding]:
    """The checks that need no database."""
    from headgate.sdk.probe import is_headgate, is_headgate_http

    certificate = config.path("tls_cert")
    host, http_port = config.text("host"), http_port_of(config)
    grpc, http = (partial(probe, certificate=certificate) for probe in (is_headgate, is_headgate_http))
    return [
        ok("settings", f"file: {config.file or 'none'}"),
        check_options(config),
        check_port("grpc", host, config.integer("port"), setting="--port", is_headgate=grpc),
        skip("port http", "the REST API is not served")
        if http_port is None
        else check_port("http", host, http_port, setting="--http-port", is_headgate=http),
        check_secret_file("tokens", config.path("tokens")),
        check_secret_file("tls key", config.path("tls_key")),
        check_certificate(certificate, config.path("tls_key"), config.path("tls_client_ca"), now=utc_now),
        check_files(open_files_limit()),
    ]


def check_options(config: Configuration) -> Finding:
    """A server would accept its options: a login, TLS where it is needed, a lease that is long enough."""
    from headgate.server import Server, ServerOptions

    try:
        Server(ServerOptions(database_url="postgresql://", **config.server_options()))  # type: ignore[arg-type]
        check_processes(config.integer("processes"))
    except InvalidInput as error:
        found = config.located(error)
        return fail("options", f"{found.field}: {found.problem}", fix=found.hint or "see the finding")
    return ok("options", "a server would start with them")


# ---------------------------------------------------------------------- the database


async def database_findings(config: Configuration) -> list[Finding]:
    """The checks of the database; if it cannot be reached, that is the finding, and the others are skipped."""
    try:
        require_choice(config, config.database_url)
        if _is_missing(config):
            names = ("database", *_DATABASE_CHECKS)
            return [skip(name, "the embedded PostgreSQL is not created yet: serve creates it") for name in names]
        async with chosen_database(config.database_url, data=config.data) as database:
            return [finding async for finding in _of_database(database, config)]
    except HeadgateError as error:
        hint = error.hint if isinstance(error, InvalidInput) else _UNREACHABLE
        if "does not exist" in str(error):  # PostgreSQL answers, and has no database or role of this name
            hint = "correct the database URL, or create it: CREATE ROLE … LOGIN; CREATE DATABASE … OWNER …;"
        return [fail("database", str(error), fix=hint), *(skip(name, "no database") for name in _DATABASE_CHECKS)]


def _is_missing(config: Configuration) -> bool:
    """Whether to start the embedded PostgreSQL would create it: doctor changes nothing."""
    return config.database_url is None and not embedded.is_created(config.data)


async def _of_database(database: Database, config: Configuration) -> AsyncIterator[Finding]:
    pooler = config.switch("pooler")
    needed = DispatchStore(database.url, pooler=pooler).connections * config.integer("processes")
    # A pooler refuses settings of a session, so none is sent, whether the option is set or not.
    db = await connect(database.url, application_name="headgate doctor", pooler=True)
    try:
        checks: tuple[Callable[[Connection], Awaitable[Finding]], ...] = (
            partial(diagnosis.check_version, title=database.title),
            partial(diagnosis.check_durability, unsafe=config.switch("unsafe")),
            diagnosis.check_standby,
            partial(diagnosis.check_clock, now=time.time),
            diagnosis.check_migrations,
            diagnosis.check_role,
            diagnosis.check_tenants,
            partial(diagnosis.check_connections, needed=needed),
            diagnosis.check_vacuum,
            diagnosis.check_snapshots,
            partial(_disk, database=database),
        )
        for check in checks:
            async with transaction(db):
                yield await check(db)
    finally:
        await db.close()
    try:
        yield await check_pooler(database.url, pooler=pooler, direct_dsn=config.direct_database_url)
    except StoreError as error:
        yield fail("pooler", str(error), fix="check HEADGATE_DIRECT_DATABASE_URL")


async def _disk(db: Connection, *, database: Database) -> Finding:
    size, folder = await diagnosis.size_and_folder(db)
    if database.cluster is not None:
        return check_disk(database.cluster.data, size=size)
    return check_disk(Path(folder) if folder and _is_here(database.url) else None, size=size)


def _is_here(url: str) -> bool:
    """Whether the database is on this machine: by its socket, or by loopback."""
    parts = urlsplit(url)
    host = parts.hostname or parse_qs(parts.query).get("host", [""])[0]
    return host.startswith("/") or (bool(host) and is_loopback(host))
