"""Browser sessions: what is stored of one, and what people see of it. Only the digest of its secret is stored."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from headgate.domain.errors import InvalidInput
from headgate.domain.identity import Identity, Scope
from headgate.domain.topic_sets import TopicSet
from headgate.domain.validation import shown

LIFE: Final = timedelta(hours=12)
PER_CREDENTIAL: Final = 100
"""A further login with the same credential ends the oldest session."""
AGENT_MAX_CHARS: Final = 200
_ID: Final = re.compile(r"[a-z2-7]{10}")
_ID_CHARS: Final = "abcdefghijklmnopqrstuvwxyz234567"


def new_session_id() -> str:
    """A new id. It is no secret: lists and the audit log have it."""
    return "".join(secrets.choice(_ID_CHARS) for _ in range(10))


def new_secret() -> str:
    """A new secret: 256 random bits."""
    return secrets.token_urlsafe(32)


def digest_of_secret(secret: str) -> bytes:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def check_session_id(value: str) -> str:
    """Raise InvalidInput unless it has the form of an id."""
    if not _ID.fullmatch(value):
        raise InvalidInput("id", f"is not the id of a session, got {shown(value)}", hint="see headgate session list")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """A session that begins now. `life`: until it ends, unless its credential ends before."""

    id: str
    digest: bytes
    identity: Identity
    address: str
    agent: str
    life: timedelta = LIFE


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSession:
    """A session. `scopes` and `topics` are those at the login: what counts is what the credential permits now."""

    id: str
    tenant: str
    subject: str
    credential: str
    scopes: tuple[str, ...]
    topics: tuple[str, ...] | None
    credential_expires: float | None  # of a JWT: seconds since 1970
    created_at: datetime
    expires_at: datetime
    seen_at: datetime
    address: str
    agent: str

    @property
    def claimed(self) -> Identity:
        """The identity at the login, for the validator to check."""
        return Identity(
            tenant=self.tenant,
            subject=self.subject,
            scopes=frozenset(map(Scope, self.scopes)),
            topics=TopicSet.stored(None if self.topics is None else list(self.topics)),
            credential=self.credential,
            expires_at=self.credential_expires,
        )
