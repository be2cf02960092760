"""The browser behind a request: its cookies, its session, what it has chosen, and what its caller may do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from headgate.control.permissions import RULES
from headgate.domain.errors import HeadgateError
from headgate.domain.identity import Identity, Scope
from headgate.domain.web_sessions import WebSession
from headgate.web.cookies import Preferences
from headgate.web.csrf import token_of
from headgate.web.routing import rule_of

_ROLES: Final = (
    (Scope.SYSTEM, "system"),
    (Scope.ADMIN, "admin"),
    (Scope.OPERATE, "operator"),
    (Scope.READ, "viewer"),
)


class LoginRequired(HeadgateError):
    """The browser has no session, or one that has ended."""

    code = "unauthenticated"


@dataclass(slots=True, kw_only=True)
class Visitor:
    """Set by the guard for every request that reaches a route."""

    cookie: str
    """What the token of its forms is derived from: the secret of the session, or a random text."""
    is_new: bool = False
    """The random text was made now, and has to be sent."""
    secure: bool = False
    identity: Identity | None = None
    session: WebSession | None = None
    preferences: Preferences = field(default_factory=Preferences)
    dev: bool = False
    read_only: bool = False
    """The database takes no writes: nothing can be changed."""

    @property
    def csrf(self) -> str:
        """The token that a form needs."""
        return token_of(self.cookie)

    @property
    def role(self) -> str:
        """The name of what the caller may do."""
        held = frozenset() if self.identity is None else self.identity.scopes
        if self.dev:
            return "admin"
        return next((name for scope, name in _ROLES if scope in held), "")

    def can(self, uses: str) -> bool:
        """Whether the caller may use a method now: buttons of other methods are not shown."""
        rule = RULES[rule_of(uses)]
        if self.read_only and rule.changes:
            return False
        try:
            if self.identity is not None:
                rule.admit(self.identity)
                return True
        except HeadgateError:
            pass
        return False
