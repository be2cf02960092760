"""`headgate batch …`: look at batches, and seal one whose submitter is gone."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Literal

from cyclopts import App

from headgate.sdk import BatchInfo, Headgate

batch = App(name="batch", help="Look at batches.")


@batch.command(name="get")
def get_command(batch_id: str, *, output: Literal["text", "json"] = "text", url: str = "") -> None:
    """Show one batch: how many jobs it has, and how they stand.

    Parameters
    ----------
    batch_id
        Its id.
    output
        text or json.
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """
    asyncio.run(_show(url or None, batch_id, output=output, seal=False))


@batch.command(name="seal")
def seal_command(batch_id: str, *, output: Literal["text", "json"] = "text", url: str = "") -> None:
    """Take no more jobs into a batch: its callback runs once all it has are done.

    Parameters
    ----------
    batch_id
        Its id.
    output
        text or json.
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """
    asyncio.run(_show(url or None, batch_id, output=output, seal=True))


async def _show(url: str | None, batch_id: str, *, output: str, seal: bool) -> None:
    async with Headgate(url) as hg:
        info = await hg.seal_batch(batch_id) if seal else await hg.batch_status(batch_id)
    print(json.dumps(asdict(info), default=str) if output == "json" else "\n".join(lines(info)))


def lines(info: BatchInfo) -> list[str]:
    """What a person wants to know, most important first."""
    stands = "expired" if info.expired else "sealed" if info.sealed else "open"
    counts = "  ".join(f"{state} {count}" for state, count in info.counts.items())
    found = [f"{info.name or 'batch'}  {stands}   {info.total} jobs", f"  id        {info.id}"]
    found.append(f"  created   {info.created_at:%Y-%m-%d %H:%M:%S} UTC")
    if not info.sealed:
        found.append(f"  expires   {info.expires_at:%Y-%m-%d %H:%M:%S} UTC")
    if counts:
        found.append(f"  jobs      {counts}" + (f"  (of {info.counted})" if info.counted < info.total else ""))
    if info.callback_id is not None:
        found.append(f"  callback  {info.callback_id}  {info.callback_state}")
    return found
