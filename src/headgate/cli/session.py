"""`headgate session …`: browsers that are signed in to the dashboard."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter

from headgate.cli.connection import with_client
from headgate.cli.lists import show_list
from headgate.cli.options import DEFAULT_SERVER, ONCE, Limit, Output, Part, Reason, Server, Watch
from headgate.cli.output import Columns, print_one
from headgate.sdk import Headgate
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
def list_command(
    *,
    part: Part = "",
    limit: Limit = 1_000,
    watch: Watch = ONCE,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """List browsers that are signed in to the dashboard. The token needs the scope admin."""

    async def read(hg: Headgate) -> list[SessionInfo]:
        return list(await hg.admin.sessions.list())

    show_list(
        server,
        read,
        output,
        SESSIONS,
        name=lambda one: one.id,
        empty="no sessions",
        watch=watch,
        part=part,
        limit=limit,
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
