"""`headgate batch …`: open and show batches, and seal one whose submitter has ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Final, Literal

from cyclopts import App, Parameter

from headgate.cli import values
from headgate.cli.connection import with_client, with_id
from headgate.cli.lists import show_list
from headgate.cli.options import DEFAULT_SERVER, SHORT_LISTING, Output, Payload, Raw, Server, ShortListing
from headgate.cli.output import Columns, details, painted, print_one, when
from headgate.domain.errors import InvalidInput
from headgate.domain.ids import JobId
from headgate.domain.validation import check_topic
from headgate.sdk import BatchInfo, Headgate
from headgate.sdk.options import prepared
from headgate.sdk.submitting import Bound

batch = App(name="batch", help="Open, show and seal batches.")
BatchId = Annotated[str, Parameter(help="Batch id, or its first digits.")]


@batch.command(name="list")
def list_command(
    *,
    open_only: Annotated[bool, Parameter(name="--open", help="Only batches that accept jobs.")] = False,
    listing: ShortListing = SHORT_LISTING,
) -> None:
    """List batches, newest first."""
    show_list(
        listing.shown,
        lambda hg: hg.admin.batches(open_only=open_only, limit=listing.read_limit),
        COLUMNS,
        name=lambda one: one.id,
        empty="no batches",
        part=listing.part,
        limit=listing.limit,
    )


@batch.command(name="open")
def open_command(
    *,
    name: Annotated[str, Parameter(help="Name for people.")] = "",
    on_done: Annotated[str, Parameter(help="Topic of the callback: a job that runs when all jobs have ended.")] = "",
    payload: Payload = "",
    raw: Raw = False,
    needs: Annotated[
        Literal["succeeded", "ended"], Parameter(help="Run the callback when all jobs have succeeded, or have ended.")
    ] = "ended",
    on_failure: Annotated[
        Literal["cancel", "ignore", "block"], Parameter(help="When a job fails and the callback needs success.")
    ] = "cancel",
    expires_in: Annotated[str, Parameter(help="A batch that is not sealed by then is closed: 24h.")] = "24h",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Open a batch and print its id. Add jobs with `headgate submit --batch`, then seal it."""
    if payload and not on_done:
        raise InvalidInput("--payload", "is for the callback", hint="pass --on-done with the topic of the callback")
    body = values.payload(payload, raw=raw)
    callback = Bound(check_topic(on_done), body, prepared()) if on_done else None
    span = values.duration(expires_in, field="--expires-in")

    async def act(hg: Headgate) -> JobId:
        new = hg.batch(name, on_done=callback, needs=needs, on_failure=on_failure, expires_in=span)
        return (await new.open()).id

    made = with_client(server, act)
    print_one({"id": made}, output, lambda: [str(made)], name=made)


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
