"""`headgate workers …`: who is connected, and who gets no more jobs. (`headgate worker` runs one.)"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Literal

from cyclopts import App

from headgate.cli import values
from headgate.sdk import Headgate

workers = App(name="workers", help="Look at connected workers, and keep some from work.")


@workers.command(name="list")
def list_command(*, output: Literal["text", "json"] = "text", url: str = "") -> None:
    """Show the connected workers of all servers.

    Parameters
    ----------
    output
        text or json (one object a line).
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """

    async def act() -> None:
        async with Headgate(url or None) as hg:
            found = await hg.admin.workers.list()
        if output == "json":
            for one in found:
                print(json.dumps(asdict(one), ensure_ascii=False))
            return
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("worker", "instance", "holds", "takes", "", "topics"):
            table.add_column(name, justify="right" if name in ("holds", "takes") else "left")
        for one in found:
            quiet = "quiet" if one.quiet else ""
            table.add_row(one.worker, one.instance, str(one.holding), str(one.credit), quiet, ", ".join(one.topics))
        Console(highlight=False, markup=False).print(table)

    asyncio.run(act())


@workers.command(name="quiet")
def quiet_command(worker: str, *, duration: str = "1h", reason: str = "", url: str = "") -> None:
    """Give a worker no more jobs, wherever it connects. It finishes what it holds.

    Parameters
    ----------
    worker
        Its name.
    duration
        How long: 10m, 1h, 2d.
    reason
        Kept in the audit.
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """

    async def act() -> None:
        span = values.span(duration, field="--duration")
        async with Headgate(url or None) as hg:
            until = await hg.admin.workers.quiet(worker, reason=reason, duration=span)
        print(f"{worker} gets no more jobs until {until:%Y-%m-%d %H:%M:%S} UTC")

    asyncio.run(act())


@workers.command(name="unquiet")
def unquiet_command(worker: str, *, reason: str = "", url: str = "") -> None:
    """Let a worker have jobs again.

    Parameters
    ----------
    worker
        Its name.
    reason
        Kept in the audit.
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """

    async def act() -> None:
        async with Headgate(url or None) as hg:
            changed = await hg.admin.workers.unquiet(worker, reason=reason)
        print(f"{worker} gets jobs again" if changed else f"{worker} was not quiet")

    asyncio.run(act())
