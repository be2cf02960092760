"""Who is calling, and what they may do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from headgate.domain.errors import HeadgateError, shortened


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
    topics: frozenset[str] | None = None
    credential: str = ""

    def permits(self, scope: Scope) -> bool:
        """Whether the token has the scope, or one that includes it."""
        return scope in self.scopes or (Scope.ADMIN in self.scopes and scope is not Scope.SYSTEM)

    def require(self, *any_of: Scope) -> None:
        """Raise PermissionDenied unless the token has one of these scopes; the error names the first of them."""
        if not any(map(self.permits, any_of)):
            raise PermissionDenied(
                f'this needs the scope "{any_of[0]}", which the token of {self.subject} does not have'
            )

    def allowed(self, topics: Iterable[str]) -> list[str]:
        """The requested topics that are permitted; none left is an error naming them."""
        requested = list(topics)
        if self.topics is None:
            return requested
        permitted = [topic for topic in requested if topic in self.topics]
        if requested and not permitted:
            raise PermissionDenied(f"the token of {self.subject} permits none of the topics {', '.join(requested)}")
        return permitted
