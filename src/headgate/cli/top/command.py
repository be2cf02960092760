"""`headgate top`: the options."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from headgate.cli.configured import client_configuration
from headgate.cli.connection import redaction_of, with_client
from headgate.cli.options import DEFAULT_SERVER, Server, interval_of
from headgate.domain.errors import InvalidInput
from headgate.sdk import Headgate
from headgate.sdk.addresses import DEFAULT_ADDRESS


def top_command(
    *,
    interval: Annotated[str, Parameter(help="Time between two reads: 500ms, 2s, 1m.")] = "2s",
    read_only: Annotated[bool, Parameter(help="Offer no action that changes something.")] = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Show topics, jobs, workers, schedules, dead letters and operations in the terminal, and act on them.

    Every interval one small set of calls is made. `?` shows the keys. Requires the extra `top`:
    pip install "headgate[top]".
    """
    from headgate.cli.top.app import TopApp  # here: Textual is an extra, and takes a while to import

    pause = interval_of(interval)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInput("top", "needs a terminal", hint="use `headgate status --watch` in a pipe")
    address = client_configuration(**asdict(server)).text("url") or DEFAULT_ADDRESS
    redaction = redaction_of(server)

    async def run(hg: Headgate) -> None:
        await TopApp(hg, server=address, redaction=redaction, interval=pause, read_only=read_only).run_to_end()

    with_client(server, run, warnings=False)  # the screen says it
