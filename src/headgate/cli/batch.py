"""`headgate batch …`: show batches, and seal one whose submitter has ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from cyclopts import App, Parameter

from headgate.cli.connection import with_client, with_id
from headgate.cli.options import DEFAULT_SERVER, Limit, Output, Server
from headgate.cli.output import Columns, details, painted, print_list, print_one, when
from headgate.domain.ids import JobId
from headgate.sdk import BatchInfo, Headgate

batch = App(name="batch", help="Show and seal batches.")
BatchId = Annotated[str, Parameter(help="Batch id, or its first digits.")]


@batch.command(name="list")
def list_command(
    *,
    open_only: Annotated[bool, Parameter(name="--open", help="Only batches that accept jobs.")] = False,
    limit: Limit = 50,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """List batches, newest first."""
    found = with_client(server, lambda hg: hg.admin.batches(open_only=open_only, limit=limit))
    print_list(found, output, COLUMNS, name=lambda one: one.id, empty="no batches")


@batch.command(name="get")
def get_command(batch_id: BatchId, *, output: Output = "table", server: Server = DEFAULT_SERVER) -> None:
    """Show one batch: the number of its jobs, by state."""
    _act(server, output, batch_id, lambda hg, known: hg.batch_status(known))


@batch.command(name="seal")
def seal_command(batch_id: BatchId, *, output: Output = "table", server: Server = DEFAULT_SERVER) -> None:
    """Accept no more jobs into a batch. Its callback runs when all its jobs have ended."""
    _act(server, output, batch_id, lambda hg, known: hg.seal_batch(known))


def _act(server: Server, output: str, given: str, verb: Callable[[Headgate, JobId], Awaitable[BatchInfo]]) -> None:
    info = with_id(server, "batch", given, verb)
    print_one(info, output, lambda: lines(info), name=info.id)


def state_of(info: BatchInfo) -> str:
    """Return whether the batch accepts jobs."""
    return "expired" if info.expired else "sealed" if info.sealed else "open"


COLUMNS: Final[Columns[BatchInfo]] = {
    "ID": lambda one: one.id,
    "STATE": state_of,
    "JOBS": lambda one: f"{one.total}+" if one.more_members else one.total,
    "CREATED": lambda one: one.created_at,
    "CALLBACK": lambda one: one.callback_id,
    "CALLBACK STATE": lambda one: one.callback_state,
    "NAME": lambda one: one.name,
}


def lines(info: BatchInfo) -> list[str]:
    """Return a batch as text, most important first."""
    counts = "  ".join(f"{state} {count:,}" for state, count in info.counts.items())
    fields = (
        ("id", info.id),
        ("created", when(info.created_at)),
        ("expires", "" if info.sealed else when(info.expires_at)),
        ("jobs", counts + (f"  (of {info.counted:,})" if counts and info.counted < info.total else "")),
        ("callback", "" if info.callback_id is None else f"{info.callback_id}  {info.callback_state}"),
    )
    return details(f"{info.name or 'batch'}  {painted(state_of(info))}   {info.total:,} jobs", fields)
