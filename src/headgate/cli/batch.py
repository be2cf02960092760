"""`headgate batch …`: show a batch, and seal one whose submitter has ended."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from headgate.cli.connection import with_client
from headgate.cli.options import Output, Url
from headgate.cli.output import as_json, print_lines, utc
from headgate.sdk import BatchInfo

batch = App(name="batch", help="Show and seal batches.")
BatchId = Annotated[str, Parameter(help="Batch id.")]


@batch.command(name="get")
def get_command(batch_id: BatchId, *, output: Output = "text", url: Url = "") -> None:
    """Show one batch: the number of its jobs, by state."""
    _report(with_client(url, lambda hg: hg.batch_status(batch_id)), output)


@batch.command(name="seal")
def seal_command(batch_id: BatchId, *, output: Output = "text", url: Url = "") -> None:
    """Accept no more jobs into a batch. Its callback runs when all its jobs have ended."""
    _report(with_client(url, lambda hg: hg.seal_batch(batch_id)), output)


def _report(info: BatchInfo, output: str) -> None:
    print_lines([as_json(info)] if output == "json" else lines(info))


def lines(info: BatchInfo) -> list[str]:
    """Return a batch as text, most important first."""
    state = "expired" if info.expired else "sealed" if info.sealed else "open"
    counts = "  ".join(f"{state} {count}" for state, count in info.counts.items())
    found = [f"{info.name or 'batch'}  {state}   {info.total} jobs", f"  id        {info.id}"]
    found.append(f"  created   {utc(info.created_at)}")
    if not info.sealed:
        found.append(f"  expires   {utc(info.expires_at)}")
    if counts:
        found.append(f"  jobs      {counts}" + (f"  (of {info.counted})" if info.counted < info.total else ""))
    if info.callback_id is not None:
        found.append(f"  callback  {info.callback_id}  {info.callback_state}")
    return found
