"""`headgate export`: jobs that match a filter, one JSON object per line."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final, TextIO

from cyclopts import Parameter

from headgate.cli.connection import redaction_of, with_client
from headgate.cli.options import DEFAULT_SERVER, Filter, Server
from headgate.domain.errors import InvalidInput, NotFound
from headgate.domain.job_export import ExportedJob
from headgate.domain.validation import check_integer, shown
from headgate.sdk import Headgate, JobInfo

AT_ONCE: Final = 16
"""Jobs whose payloads are read at the same time, and are in memory."""


def export_command(
    *,
    filter: Filter = "",  # noqa: A002 - the option's name
    limit: Annotated[int, Parameter(help="Maximum number of jobs. Default: 0, all of them.")] = 0,
    reveal: Annotated[
        bool, Parameter(help="Write values of secret keys as they are. Needed for a file that is imported.")
    ] = False,
    file: Annotated[str, Parameter(name=("--file", "-f"), help="Write to this file; by default, to stdout.")] = "",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Write jobs with their payloads as NDJSON, oldest first. `headgate import` reads it.

    Values of secret keys are masked, and each line names them in `masked`. HEADGATE_REDACT has the names of further
    secret keys, separated by commas.
    """
    check_integer(limit, field="--limit", low=0, high=10**12)
    redaction = None if reveal else redaction_of(server)

    async def act(hg: Headgate, to: TextIO) -> tuple[int, int]:
        written = masked = 0
        async for some in _pages(hg, filter, limit):
            for one in await asyncio.gather(*(_read(hg, info) for info in some)):
                if one is None:
                    continue
                line = one.line(redaction)
                print(line, file=to)
                written += 1
                masked += not line.endswith('"masked":[]}')
        return written, masked

    with ExitStack() as stack:
        to = stack.enter_context(_opened(file)) if file else sys.stdout
        written, masked = with_client(server, lambda hg: act(hg, to))
    note = f"; {masked:,} have masked values and cannot be imported (--reveal writes them)" if masked else ""
    print(f"{written:,} job{'' if written == 1 else 's'} exported{note}", file=sys.stderr)


async def _pages(hg: Headgate, text: str, limit: int) -> AsyncIterator[Sequence[JobInfo]]:
    """The jobs that match, a few at a time: no more than these are in memory with their payloads."""
    some: list[JobInfo] = []
    count = 0
    async for info in hg.admin.jobs_matching(text, oldest_first=True):
        some.append(info)
        count += 1
        if len(some) == AT_ONCE or count == limit:
            yield some
            some = []
        if count == limit:
            return
    if some:
        yield some


async def _read(hg: Headgate, listed: JobInfo) -> ExportedJob | None:
    """A job with its payload; None if retention has removed it meanwhile."""
    try:
        info = await hg.get(listed.id, payload=True, result=True)
    except NotFound:
        return None
    waits_for = [one.id for one in info.parents if one.met == "waiting"]
    return ExportedJob.of(info, waits_for=waits_for, result=info.raw_result)


def _opened(name: str) -> TextIO:
    try:
        return Path(name).open("w", encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a file name"
        raise InvalidInput("--file", f"{shown(name)} cannot be written: {reason}") from None
