"""Login and logout."""

from __future__ import annotations

from typing import Final

from litestar import Response
from litestar.params import FromQuery

from headgate.domain.errors import HeadgateError, ReadOnly
from headgate.domain.identity import CredentialsUnavailable, PermissionDenied, Unauthenticated
from headgate.domain.web_sessions import LIFE
from headgate.web.cookies import session_cookie
from headgate.web.guard import session_secret
from headgate.web.request import HTML, Html, PageRequest
from headgate.web.routing import PREFIX, open_action, open_page, safe_path

CLEARED: Final = {"clear-site-data": '"cache"'}
"""What a browser kept of the pages of a session must not be shown after it."""


@open_page("/login")
async def login_page(request: PageRequest, next: FromQuery[str] = "") -> Html:  # noqa: A002
    """The form."""
    if request.visitor.identity is not None:
        return Response("", status_code=303, headers={"location": safe_path(next)}, media_type=HTML)
    return request.render("login.html", next=safe_path(next), error="")


@open_action("/login")
async def login(request: PageRequest) -> Html:
    """Begin a session with a new secret, whatever the browser had before."""
    form, goal = request.fields, safe_path(request.fields.raw("next"))
    client = request.client
    try:
        secret, session = await request.cases.web_sessions.login(
            form.text("token"),
            address=client.host if client is not None else "",
            agent=request.headers.get("user-agent", ""),
        )
    except (Unauthenticated, PermissionDenied, CredentialsUnavailable, ReadOnly) as error:
        status = {Unauthenticated: 401, PermissionDenied: 403}.get(type(error), 503)
        return request.render("login.html", status_code=status, next=goal, error=_sentence(error))
    if before := session_secret(request):
        await request.cases.web_sessions.logout(before)
    secure = request.is_secure or request.headers.get("origin", "").startswith("https:")
    cookie = session_cookie(secret, secure=secure, life=min(LIFE, session.expires_at - session.created_at))
    headers = {"location": goal, **CLEARED}
    return Response("", status_code=303, headers=headers, media_type=HTML, cookies=[cookie])


@open_action("/logout")
async def logout(request: PageRequest) -> Html:
    """End the session of this browser, or all sessions of its key or token."""
    everywhere = request.fields.flag("everywhere")
    if secret := session_secret(request):
        try:
            await request.cases.web_sessions.logout(secret, everywhere=everywhere)
        except ReadOnly:
            if everywhere:
                raise
            # The browser forgets the session, which ends by itself.
    gone = [session_cookie("", secure=secure, life=LIFE) for secure in (True, False)]
    headers = {"location": f"{PREFIX}/login", **CLEARED}
    return Response("", status_code=303, headers=headers, media_type=HTML, cookies=gone)


def _sentence(error: HeadgateError) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."
