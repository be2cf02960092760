"""Browser sessions: login with a key or token, logout, list, revoke.

A session has no rights of its own. Each request asks what its credential permits now, so it ends with its credential
within five seconds on every instance, and at the latest after twelve hours. Sessions are read from the database at most
every READ_SECONDS, so a logout or revocation counts everywhere after that time.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Protocol

from headgate.control.auth import TokenValidator, identity_of
from headgate.control.failed_logins import FailedLogins
from headgate.domain.errors import NotFound
from headgate.domain.identity import Identity, PermissionDenied, Scope, TokenRevoked, Unauthenticated
from headgate.domain.validation import check_page_size, check_reason
from headgate.domain.web_sessions import (
    AGENT_MAX_CHARS,
    LIFE,
    NewSession,
    WebSession,
    check_session_id,
    digest_of_secret,
    new_secret,
    new_session_id,
)

log = logging.getLogger("headgate.sessions")
READ_SECONDS: Final = 2.0
SEEN_SECONDS: Final = 60.0
KEPT: Final = 10_000
"""Sessions in memory; the one that was read longest ago leaves first, and is read again."""


class WebSessionStore(Protocol):
    """Sessions in the database. Those that have ended are not found. `tenant` None: of all tenants."""

    async def begin(self, new: NewSession, /) -> WebSession: ...
    async def find(self, digest: bytes, /, *, seen: bool) -> WebSession | None: ...
    async def end(self, digest: bytes, /, *, everywhere: bool) -> int: ...
    async def listed(self, tenant: str | None, /, *, after: str, limit: int) -> list[WebSession]: ...
    async def revoke(self, tenant: str | None, session_id: str, /, *, actor: str, reason: str) -> WebSession | None: ...


class WebSessions:
    """The sessions of browsers."""

    def __init__(
        self,
        store: WebSessionStore,
        validator: TokenValidator,
        logins: FailedLogins,
        *,
        now: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._validator, self._logins, self._now, self._clock = store, validator, logins, now, clock
        # By digest: the session, until when it need not be read again, and when it was last noted as seen.
        self._read: OrderedDict[bytes, tuple[WebSession | None, float, float]] = OrderedDict()

    async def login(self, token: str, *, address: str, agent: str) -> tuple[str, WebSession]:
        """Begin a session with a key or token; returns its secret, once. Raises Unauthenticated, late after many."""
        try:
            identity = await identity_of(self._validator, token)
        except Unauthenticated as error:
            await self._logins.failed(address, error.reason)
            raise
        if not identity.permits(Scope.READ) and not identity.permits(Scope.SYSTEM):
            raise PermissionDenied(
                f'the dashboard needs the scope "read", which the token of {identity.subject} does not have'
            )
        life = LIFE
        if identity.expires_at is not None:  # a JWT
            life = min(LIFE, timedelta(seconds=max(1.0, identity.expires_at - self._clock())))
        secret = new_secret()
        new = NewSession(
            id=new_session_id(),
            digest=digest_of_secret(secret),
            identity=identity,
            address=address[:AGENT_MAX_CHARS],
            agent=agent[:AGENT_MAX_CHARS],
            life=life,
        )
        session = await self._store.begin(new)
        log.info("session_began session=%s who=%s peer=%s", session.id, identity.subject, address)
        return secret, session

    async def identify(self, secret: str) -> tuple[WebSession, Identity]:
        """The session of a cookie, and what its credential permits now. Raises Unauthenticated, TokenRevoked."""
        session = await self._find(digest_of_secret(secret))
        if session is None:
            raise Unauthenticated("session has ended")
        return session, await self._current(session)

    async def logout(self, secret: str, *, everywhere: bool = False) -> int:
        """End the session of a cookie; one that has ended stays ended. `everywhere`: all sessions of its credential.

        Returns how many have ended. Other instances know it within READ_SECONDS.
        """
        digest = digest_of_secret(secret)
        ended = await self._store.end(digest, everywhere=everywhere)
        if everywhere:
            self._read.clear()
            log.warning("sessions_ended_everywhere count=%d", ended)
        else:
            self._read.pop(digest, None)
        return ended

    async def page(self, caller: Identity, *, after: str = "", limit: int = 100) -> tuple[list[WebSession], str]:
        """Sessions of the caller's tenant (with the scope `system`: of all), newest first.

        Those whose credential has ended are left out. Returns the id after which the next page begins; empty on the
        last page. Raises NotFound if that session has ended meanwhile.
        """
        check_page_size(limit)
        tenant = caller.managed_tenant()
        found = await self._store.listed(tenant, after=check_session_id(after) if after else "", limit=limit)
        alive = list[WebSession]()
        for one in found:
            try:
                await self._current(one, uses=False)
            except (Unauthenticated, TokenRevoked):
                continue
            alive.append(one)
        return alive, found[-1].id if len(found) == limit else ""

    async def revoke(self, caller: Identity, session_id: str, *, reason: str = "") -> WebSession:
        """End a session; on other instances within READ_SECONDS. Raises NotFound."""
        tenant = caller.managed_tenant()
        check_reason(reason)
        ended = await self._store.revoke(tenant, check_session_id(session_id), actor=caller.subject, reason=reason)
        if ended is None:
            raise NotFound("session", session_id)
        self._read.clear()
        log.warning("session_revoked session=%s subject=%s who=%s", ended.id, ended.subject, caller.subject)
        return ended

    async def _find(self, digest: bytes) -> WebSession | None:
        known, until, noted = self._read.get(digest, (None, 0.0, -SEEN_SECONDS))
        now = self._now()
        if now < until:
            return known
        seen = known is not None and now - noted >= SEEN_SECONDS
        found = await self._store.find(digest, seen=seen)
        self._read[digest] = (found, now + READ_SECONDS, now if seen else noted)
        self._read.move_to_end(digest)
        while len(self._read) > KEPT:
            self._read.popitem(last=False)
        return found

    async def _current(self, session: WebSession, *, uses: bool = True) -> Identity:
        await self._validator.learn(session.credential)
        identity = self._validator.recheck(session.claimed, uses=uses)
        if identity.tenant != session.tenant:
            raise TokenRevoked(f"the token of {session.subject} belongs to another tenant now")
        return identity
