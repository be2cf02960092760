"""`headgate session …`: browsers that are signed in to the dashboard."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter

from headgate.cli.connection import with_client
from headgate.cli.lists import show_list
from headgate.cli.options import DEFAULT_SERVER, LISTING, Listing, Output, Reason, Server
from headgate.cli.output import Columns, print_one
from headgate.sdk.admin import SessionInfo

session = App(name="session", help="List and end sessions of browsers.")
SESSIONS: Final[Columns[SessionInfo]] = {
    "SESSION": lambda one: one.id,
    "WHO": lambda one: one.subject,
    "TENANT": lambda one: one.tenant or None,
    "ADDRESS": lambda one: one.address,
    "SIGNED IN": lambda one: one.created,
    "LAST SEEN": lambda one: one.seen,
    "ENDS": lambda one: one.expires,
}


@session.command(name="list")
def list_command(*, listing: Listing = LISTING) -> None:
    """List browsers that are signed in to the dashboard. The token needs the scope admin."""
    show_list(
        listing.shown,
        lambda hg: hg.admin.sessions.list(),
        SESSIONS,
        name=lambda one: one.id,
        empty="no sessions",
        part=listing.part,
        limit=listing.limit,
    )


@session.command(name="revoke")
def revoke_command(
    session_id: Annotated[str, Parameter(help="Id of the session, from `headgate session list`.")],
    *,
    reason: Reason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """End a session: its browser has to sign in again. A session also ends with its key, and after 12 hours."""
    ended = with_client(server, lambda hg: hg.admin.sessions.revoke(session_id, reason=reason))
    print_one(ended, output, lambda: [f"session {ended.id} of {ended.subject} has ended"], name=ended.id)
