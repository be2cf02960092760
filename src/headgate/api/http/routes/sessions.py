"""Browsers that are signed in to the dashboard."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar.params import JSONBody, PathParameter, QueryParameter

from headgate.api.http.codec import Output, answers
from headgate.api.http.request import ApiRequest
from headgate.api.http.routes.job_verbs import WithReason
from headgate.api.http.routing import PageSize, get, post
from headgate.domain import limits
from headgate.domain.web_sessions import WebSession

TAG = ["keys"]
SessionId = Annotated[str, PathParameter(description="Id of a session: ten letters and digits.")]


class SessionInfo(Output, kw_only=True):
    """A browser that is signed in."""

    id: str
    tenant: str = ""
    subject: Annotated[str, msgspec.Meta(description="Name of the key or token that it ends with.")]
    created_us: int
    expires_us: int
    seen_us: int
    address: str = ""
    agent: str = ""


class SessionPage(Output, kw_only=True):
    """A page of sessions by id."""

    sessions: list[SessionInfo]
    after: Annotated[str, msgspec.Meta(description="For the next page; left out on the last one.")] = ""


@get("/v1/sessions", uses="KeyService/ListSessions", tags=TAG)
async def list_sessions(
    request: ApiRequest,
    after: Annotated[str, QueryParameter(description="The id after which the page begins.")] = "",
    limit: PageSize = limits.NAMES_PAGE,
) -> SessionPage:
    """List browsers that are signed in to the dashboard."""
    found, following = await request.cases.web_sessions.page(request.caller, after=after, limit=limit)
    return SessionPage(sessions=[_info(one) for one in found], after=following)


@post("/v1/sessions/{session_id:str}/revoke", uses="KeyService/RevokeSession", tags=TAG)
async def revoke_session(
    request: ApiRequest, session_id: SessionId, data: JSONBody[WithReason | None] = None
) -> SessionInfo:
    """End a session within five seconds on every instance."""
    reason = "" if data is None else data.reason
    return _info(await request.cases.web_sessions.revoke(request.caller, session_id, reason=reason))


def _info(one: WebSession) -> SessionInfo:
    return answers.of(SessionInfo, one)
