"""Access: API keys, what each role may do, and browsers that are signed in."""

from __future__ import annotations

from typing import Final

from litestar.params import FromPath, FromQuery

from headgate.domain.api_keys import OVERLAP_DEFAULT
from headgate.domain.identity import Scope
from headgate.web.rendering import url
from headgate.web.request import Html, PageRequest
from headgate.web.routing import action, page

ROWS: Final = 100
LIVES: Final = (("", "never"), ("1d", "in 1 day"), ("30d", "in 30 days"), ("90d", "in 90 days"), ("365d", "in a year"))
SCOPES: Final = (
    (Scope.READ, "see everything of the tenant, change nothing (viewer)"),
    (Scope.OPERATE, "redrive, cancel, pause, change topics and schedules (operator)"),
    (Scope.ADMIN, "all of these, and manage keys and sessions (admin)"),
    (Scope.SUBMIT, "submit jobs"),
    (Scope.WORK, "run jobs"),
)


@page("/access", uses="KeyService/ListKeys")
async def access(
    request: PageRequest,
    after: FromQuery[str] = "",
    sessions_after: FromQuery[str] = "",
    revoked: FromQuery[bool] = False,
) -> Html:
    """Keys and sessions of the tenant, each with pages of its own."""
    keys, next_key = await request.cases.keys.page(request.caller, revoked=revoked, after=after, limit=ROWS)
    sessions, next_session = await request.cases.web_sessions.page(request.caller, after=sessions_after, limit=ROWS)
    shown = {"revoked": "true" if revoked else "", "after": after, "sessions_after": sessions_after}
    return request.render(
        "access/index.html",
        fragment="access/_lists.html",
        keys=keys,
        revoked=revoked,
        sessions=sessions,
        next_keys_url=url("access", **shown | {"after": next_key}) if next_key else "",
        first_keys_url=url("access", **shown | {"after": ""}) if after else "",
        next_sessions_url=url("access", **shown | {"sessions_after": next_session}) if next_session else "",
        first_sessions_url=url("access", **shown | {"sessions_after": ""}) if sessions_after else "",
        scopes=SCOPES,
        lives=LIVES,
    )


@action("/access/keys", uses="KeyService/CreateKey")
async def create_key(request: PageRequest) -> Html:
    """Create a key, and show it once."""
    form = request.fields
    view, key = await request.cases.keys.create(
        request.caller,
        form.required("name"),
        scopes=form.many("scopes"),
        topics=form.text("topics").split() or None,
        tenant=form.text("tenant"),
        expires_in=form.duration("expires_in"),
    )
    return request.render("access/created.html", key=view, secret=key, verb="created")


@action("/access/keys/{key_id:str}/rotate", uses="KeyService/RotateKey", confirm=True)
async def rotate_key(request: PageRequest, key_id: FromPath[str]) -> Html:
    """Give a key a new secret, and show it once. The old one works until the overlap is over."""
    overlap = request.fields.duration("overlap")
    view, key = await request.cases.keys.rotate(
        request.caller,
        key_id,
        overlap=OVERLAP_DEFAULT if overlap is None else overlap,
        reason=request.fields.text("reason"),
    )
    return request.render("access/created.html", key=view, secret=key, verb="rotated")


@action("/access/keys/{key_id:str}/revoke", uses="KeyService/RevokeKey", confirm=True)
async def revoke_key(request: PageRequest, key_id: FromPath[str]) -> Html:
    """End a key."""
    view = await request.cases.keys.revoke(request.caller, key_id, reason=request.fields.text("reason"))
    return request.done(f'Key "{view.name}" is revoked. What it has open ends within 5 s.', to=url("access"))


@action("/access/sessions/{session_id:str}/revoke", uses="KeyService/RevokeSession", confirm=True)
async def revoke_session(request: PageRequest, session_id: FromPath[str]) -> Html:
    """End the session of a browser."""
    ended = await request.cases.web_sessions.revoke(request.caller, session_id, reason=request.fields.text("reason"))
    return request.done(f"A session of {ended.subject} has ended.", to=url("access"))
