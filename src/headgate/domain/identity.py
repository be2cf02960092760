"""Who is calling, and what they may do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from headgate.domain.errors import HeadgateError, shortened
from headgate.domain.rate_limits import Rates
from headgate.domain.topic_sets import TopicSet


class Scope(StrEnum):
    """What a token permits. `work` takes jobs and reports outcomes, `submit` hands them in, `read` looks.

    `admin` permits all of them in its tenant. `system` permits what reaches every tenant, and nothing else: a token has
    it alone, and belongs to no tenant.
    """

    SUBMIT = "submit"
    WORK = "work"
    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"
    SYSTEM = "system"


class Unauthenticated(HeadgateError):
    """No token, or one that is not valid. The text is the same for every invalid token; the log knows the reason."""

    code = "unauthenticated"

    def __init__(self, reason: str = "", *, missing: bool = False) -> None:
        """`reason` is for the log only."""
        super().__init__("a token is required, and none was given" if missing else "the token is not valid")
        self.reason = reason


class LookupRequired(Exception):
    """Nothing is known about the token yet: `TokenValidator.lookup` asks the database, or the issuer for its keys."""


class CredentialsUnavailable(HeadgateError):
    """The credential cannot be checked now: the database of keys, or the keys of its issuer, cannot be read."""

    code = "credentials_unavailable"


class TokenRevoked(HeadgateError):
    """The token that a stream or a waiting call came with is not valid any more, or permits something else now."""

    code = "token_revoked"


class PermissionDenied(HeadgateError):
    """The token is valid, but does not permit this."""

    code = "permission_denied"

    def __init__(self, text: str) -> None:
        super().__init__(shortened(text))  # it may name all topics that were asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A caller. `tenant` is empty for the scope `system`. `topics` None means any of the tenant's.

    `credential` names what it came with, so that open streams, waiting calls and bulk operations end with it. It is no
    secret: neither the token nor its digest can be found from it. Empty: it cannot be revoked.
    """

    tenant: str
    subject: str
    scopes: frozenset[Scope]
    topics: TopicSet | None = None
    credential: str = ""
    rates: Rates | None = None  # limits of this credential; None: those of the server
    expires_at: float | None = None
    """Seconds since 1970. Only of a credential that no list has, a JWT: others are looked up by `credential`."""

    @property
    def lasting_credential(self) -> str:
        """What a bulk operation ends with; empty for a JWT, whose end says nothing about the rights of its holder."""
        return self.credential if self.expires_at is None else ""

    def permits(self, scope: Scope) -> bool:
        """Whether the token has the scope, or one that includes it."""
        return scope in self.scopes or (Scope.ADMIN in self.scopes and scope is not Scope.SYSTEM)

    def require(self, *any_of: Scope) -> None:
        """Raise PermissionDenied unless the token has one of these scopes; the error names the first of them."""
        if not any(map(self.permits, any_of)):
            raise PermissionDenied(
                f'this needs the scope "{any_of[0]}", which the token of {self.subject} does not have'
            )

    def managed_tenant(self) -> str | None:
        """The tenant whose keys and sessions it may manage; None: of all. Raises PermissionDenied."""
        self.require(Scope.ADMIN, Scope.SYSTEM)
        return None if self.permits(Scope.SYSTEM) else self.tenant

    def allowed(self, topics: Iterable[str]) -> list[str]:
        """The requested topics that are permitted; none left is an error naming them."""
        requested = list(topics)
        if self.topics is None:
            return requested
        permitted = [topic for topic in requested if topic in self.topics]
        if requested and not permitted:
            raise PermissionDenied(f"the token of {self.subject} permits none of the topics {', '.join(requested)}")
        return permitted
