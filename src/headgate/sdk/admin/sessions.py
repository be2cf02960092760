"""Browsers that are signed in to the dashboard: `hg.admin.sessions`."""

from __future__ import annotations

from builtins import list as list_of
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from headgate.sdk.admin.encoding import utf8_text
from headgate.sdk.connection import Connection
from headgate.sdk.records import record
from headgate.sdk.rpc import Method
from headgate.wire import keys_pb2 as pb

LIST: Final = Method("KeyService/ListSessions", pb.ListSessionsRequest, pb.ListSessionsResponse)
REVOKE: Final = Method("KeyService/RevokeSession", pb.RevokeSessionRequest, pb.SessionInfo)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A browser that is signed in. `subject` is the name of its key or token; it ends with that, or at `expires`."""

    id: str
    tenant: str
    subject: str
    created: datetime
    expires: datetime
    seen: datetime
    address: str
    agent: str


class SessionsAdmin:
    """The browser sessions of your tenant; with a token of the scope `system`, of every tenant."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(self) -> list_of[SessionInfo]:
        """All sessions by id."""
        found: list_of[SessionInfo] = []
        request = pb.ListSessionsRequest(limit=1_000)
        while True:
            answer = await self._connection.call(LIST, request)
            found += map(_info, answer.sessions)
            if not answer.after:
                return found
            request.after = answer.after

    async def revoke(self, session_id: str, *, reason: str = "") -> SessionInfo:
        """End a session; within five seconds on every server. Raises NotFound."""
        request = pb.RevokeSessionRequest(
            id=utf8_text(session_id, field="id"), reason=utf8_text(reason, field="reason")
        )
        return _info(await self._connection.call(REVOKE, request, about=("session", session_id)))


def _info(one: pb.SessionInfo) -> SessionInfo:
    return record(SessionInfo, one)
