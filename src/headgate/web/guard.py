"""Admits a request of a browser: session, rule of the page, rate limit; for a change also its origin and its token."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from weakref import WeakValueDictionary

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from headgate.api.http.auth import OPEN, RULE, Admission
from headgate.api.http.edge import SLASH
from headgate.api.http.origins import check_local_host
from headgate.api.use_cases import UseCases
from headgate.control.auth import AllowAll
from headgate.control.permissions import RULES
from headgate.domain import limits
from headgate.domain.errors import ReadOnly
from headgate.domain.identity import TokenRevoked, Unauthenticated
from headgate.web.cookies import (
    PLAIN_SESSION,
    PLAIN_VISITOR,
    PREFERENCES,
    SECURE_SESSION,
    SECURE_VISITOR,
    Preferences,
)
from headgate.web.csrf import FIELD, HEADER, check_origin, check_token, new_visitor
from headgate.web.errors import NotConfirmed
from headgate.web.request import PageRequest
from headgate.web.routing import CONFIRM
from headgate.web.visitor import LoginRequired, Visitor

CONFIRMED = "confirmed"
TYPED = "confirm_text"
"""The field with what has to be typed to confirm; empty: a click suffices."""


class PageGuard:
    """The guard of all pages and actions."""

    def __init__(self, cases: UseCases) -> None:
        self._cases = cases
        self._dev = isinstance(cases.validator, AllowAll)
        self._bodies: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def __call__(self, connection: ASGIConnection[Any, Any, Any, Any], route: BaseRouteHandler) -> None:
        """Raises LoginRequired, PermissionDenied, ReadOnly, ForgedRequest, NotConfirmed."""
        request = cast("PageRequest", connection)
        scope: dict[str, Any] = cast("dict[str, Any]", request.scope)
        # A copy: Litestar keeps the original for the next request to the same path.
        scope["path_params"] = {name: value.replace(SLASH, "/") for name, value in scope["path_params"].items()}
        if self._dev:
            check_local_host(request.headers.get("host", ""))
        changes = request.method == "POST"
        if changes:
            check_origin(request.headers, secure=request.is_secure)
        visitor = scope["visitor"] = await self._visitor(request)
        reason = self._cases.health.read_only()
        visitor.read_only = bool(reason)
        if not route.opt.get(OPEN):
            self._admit(request, visitor, RULES[route.opt[RULE]])
            if changes and reason:
                raise ReadOnly(f"nothing can be changed: {reason}")
        if changes:
            form = await request.read_form()
            check_token(visitor.cookie, request.headers.get(HEADER) or form.raw(FIELD))
            if route.opt.get(CONFIRM) and form.raw(CONFIRMED) != (form.raw(TYPED) or "1"):
                raise NotConfirmed(form)

    async def _visitor(self, request: PageRequest) -> Visitor:
        preferences = Preferences.of(request.cookies.get(PREFERENCES, ""))
        secure = request.is_secure
        if self._dev:
            identity = self._cases.validator.identify("")
            cookie, is_new = self._anonymous(request)
            return Visitor(
                cookie=cookie, is_new=is_new, secure=secure, identity=identity, preferences=preferences, dev=True
            )
        secret = session_secret(request)
        if secret:
            try:
                session, identity = await self._cases.web_sessions.identify(secret)
            except (Unauthenticated, TokenRevoked):
                pass  # a route that needs a login is declared so
            else:
                return Visitor(
                    cookie=secret, secure=secure, identity=identity, session=session, preferences=preferences
                )
        cookie, is_new = self._anonymous(request)
        return Visitor(cookie=cookie, is_new=is_new, secure=secure, preferences=preferences)

    def _anonymous(self, request: PageRequest) -> tuple[str, bool]:
        known = request.cookies.get(SECURE_VISITOR if request.is_secure else PLAIN_VISITOR, "")
        return (known, False) if known else (new_visitor(), True)

    def _admit(self, request: PageRequest, visitor: Visitor, rule: Any) -> None:
        identity = visitor.identity
        if identity is None:
            raise LoginRequired("sign in to see this page")
        rule.admit(identity)
        if (rate_class := rule.rate_class) is not None:
            self._cases.rates.take(identity, rate_class)
        bodies = self._bodies.get(identity.credential)
        if bodies is None:
            bodies = self._bodies[identity.credential] = asyncio.Semaphore(limits.REQUESTS_AT_ONCE)
        request.scope["user"] = identity
        request.scope["auth"] = Admission(self._cases.validator, rule, bodies)


def session_secret(request: PageRequest) -> str:
    """The secret in the cookie of a session. Over TLS only the name that no other host can set."""
    secure = request.cookies.get(SECURE_SESSION, "")
    return secure if secure or request.is_secure else request.cookies.get(PLAIN_SESSION, "")
