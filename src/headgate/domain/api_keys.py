"""API keys: what a key looks like, what is stored of it, what people see of it.

A key is `hg_`, eight characters of id and forty random ones: `hg_7k3mz9ab_…`. The id is no secret: it is in logs, lists
and the audit log. Only the SHA-256 of the whole key is stored. A slow hash is for secrets that people invent; forty
random characters have 238 bits, which no one can try out, and every first use of a key would pay for it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from headgate.domain import limits
from headgate.domain.errors import InvalidInput
from headgate.domain.identity import Scope
from headgate.domain.rate_limits import Rates
from headgate.domain.topic_sets import TopicSet
from headgate.domain.validation import check_tenant, check_text, shown

PREFIX: Final = "hg_"
CREDENTIAL_PREFIX: Final = "key-"
_ID_CHARS: Final = string.ascii_lowercase + string.digits
_SECRET_CHARS: Final = string.ascii_letters + string.digits
ID_CHARS: Final = 8
SECRET_CHARS: Final = 40
_KEY: Final = re.compile(rf"hg_([a-z0-9]{{{ID_CHARS}}})_[A-Za-z0-9]{{{SECRET_CHARS}}}")
_ID: Final = re.compile(rf"(?:{PREFIX})?([a-z0-9]{{{ID_CHARS}}})")
OVERLAP_DEFAULT: Final = timedelta(hours=24)
OVERLAP_MAX: Final = timedelta(days=30)
LIFE_MIN: Final = timedelta(seconds=1)
LIFE_MAX: Final = timedelta(days=3650)


def check_life(span: timedelta) -> timedelta:
    """Accept the life of a key. A life that is over already is refused: it must not become a key without an end."""
    if not LIFE_MIN <= span <= LIFE_MAX:
        raise InvalidInput(
            "expires_in", f"must be from 1 second to {LIFE_MAX.days} days", hint="leave it out for a key without an end"
        )
    return span


def new_key_id() -> str:
    """A new id."""
    return "".join(secrets.choice(_ID_CHARS) for _ in range(ID_CHARS))


def new_key(key_id: str) -> str:
    """A new key with this id."""
    return f"{PREFIX}{key_id}_" + "".join(secrets.choice(_SECRET_CHARS) for _ in range(SECRET_CHARS))


def id_of_key(key: str) -> str | None:
    """The id in a key; None if it does not have the form of a key."""
    found = _KEY.fullmatch(key)
    return None if found is None else found[1]


def digest_of(key: str) -> bytes:
    """What is stored of a key, and of a token in a file."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def credential_of(key_id: str, digest: bytes) -> str:
    """The name of one secret of a key, from which neither can be found: what is open with it ends with it."""
    return f"{CREDENTIAL_PREFIX}{key_id}-{hashlib.sha256(b'headgate credential' + digest).hexdigest()[:8]}"


def id_of_credential(credential: str) -> str:
    """The id of the key in the name of a credential."""
    return credential[len(CREDENTIAL_PREFIX) :][:ID_CHARS]


def is_key_id(text: str) -> bool:
    """Whether the text is the id of a key, with `hg_`."""
    return text.startswith(PREFIX) and _ID.fullmatch(text) is not None


def check_key_id(value: str, *, field: str = "id") -> str:
    """Accept the id of a key, with or without `hg_`. A whole key is refused, and not shown."""
    found = _ID.fullmatch(value)
    if found is not None:
        return found[1]
    if id_of_key(value) is not None:
        raise InvalidInput(field, "is a whole key", hint=f"give its id alone: {value[: len(PREFIX) + ID_CHARS]}")
    raise InvalidInput(field, f"is not the id of a key, got {shown(value)}", hint="use hg_ and 8 characters")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key to create. `tenant` is empty for the scope `system`."""

    name: str
    tenant: str
    scopes: frozenset[Scope]
    topics: TopicSet | None = None
    expires_in: timedelta | None = None
    rates: Rates | None = None

    def __post_init__(self) -> None:
        check_text(self.name, field="name", high=limits.KEY_NAME_MAX_CHARS)
        if not self.scopes:
            raise InvalidInput("scopes", "is empty", hint=f"give one or more of {', '.join(Scope)}")
        if Scope.SYSTEM in self.scopes:
            if len(self.scopes) > 1 or self.tenant or self.topics is not None:
                raise InvalidInput(
                    "scopes", 'the scope "system" cannot be combined with other scopes, a tenant or topics'
                )
        else:
            check_tenant(self.tenant)
        if self.expires_in is not None:
            check_life(self.expires_in)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """A key as servers keep it to check callers. Times are seconds from the moment it was read."""

    id: str
    tenant: str
    name: str
    digest: bytes
    old_digest: bytes | None
    old_for: float | None
    scopes: frozenset[Scope]
    topics: TopicSet | None
    rates: Rates | None
    expires_in: float | None
    revoked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyView:
    """A key as people see it, without its secret. `old_until`: how long the secret before the last rotation works."""

    id: str
    tenant: str
    name: str
    scopes: tuple[str, ...]
    topics: tuple[str, ...] | None
    rates: dict[str, str]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    rotated_at: datetime | None
    old_until: datetime | None
    revoked_at: datetime | None
    revoked_by: str
    last_used_at: datetime | None
    expired: bool

    @property
    def state(self) -> str:
        """`active`, `expired` or `revoked`."""
        return "revoked" if self.revoked_at is not None else "expired" if self.expired else "active"


def check_scopes(values: object, *, field: str = "scopes") -> frozenset[Scope]:
    """Accept names of scopes."""
    given = [str(one) for one in (values if isinstance(values, list | tuple | set) else [values])]
    if unknown := [one for one in given if one not in set(Scope)]:
        raise InvalidInput(
            field, f"has an unknown scope, got {shown(unknown[0])}", hint=f"use one or more of {', '.join(Scope)}"
        )
    return frozenset(map(Scope, given))
