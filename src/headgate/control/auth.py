"""Authentication: a validator turns a token into an identity; static tokens come from a file (docs/howto/tokens.md)."""

from __future__ import annotations

import hashlib
import json
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol

from headgate.domain.api_keys import PREFIX, digest_of
from headgate.domain.errors import InvalidInput, InvalidSetting
from headgate.domain.identity import Identity, LookupRequired, Scope, TokenRevoked, Unauthenticated
from headgate.domain.rate_limits import Rates
from headgate.domain.topic_sets import TopicSet, check_topic_patterns
from headgate.domain.validation import check_tenant, check_text

WORKER_SCOPES: Final = frozenset({Scope.WORK, Scope.READ, Scope.SUBMIT})
GONE_LOOKS: Final = 2
"""A file that is missing this many times in a row was removed on purpose; once can be the middle of a replacement."""
_RECORDED: Final = frozenset({Scope.OPERATE, Scope.ADMIN, Scope.SYSTEM})
"""Scopes that permit changes which are recorded in the audit log or in the history of a job, with their actor."""
_HASHED: Final = re.compile(r"sha256:([0-9a-fA-F]{64})")
_ENTRY: Final = frozenset({"tenant", "name", "expires", "scopes", "topics", "rates"})
_FORM: Final = (
    '{"TOKEN or sha256:HEX": {"tenant": …, "name": …, "expires": …, "scopes": […], "topics": […], "rates": {…}}}'
)


class TokenValidator(Protocol):
    """Turns a token into an identity, and returns later what that identity still permits."""

    def identify(self, token: str) -> Identity:
        """The identity of a token. Raises Unauthenticated. Called for every call: it must be cheap.

        Raises LookupRequired for a token that nothing is known about yet: then `lookup` has the answer.
        """
        ...

    async def lookup(self, token: str) -> Identity:
        """The same, and asks the database or an issuer if it must. Raises CredentialsUnavailable as well."""
        ...

    async def learn(self, credential: str) -> None:
        """Read what `recheck` must know about the credential of a stored bulk operation."""
        ...

    def recheck(self, identity: Identity, *, uses: bool = True) -> Identity:
        """The identity with its current rights. Raises TokenRevoked. Called for every frame: it must be cheap.

        `uses` False: someone else asks, so the credential is not noted as used.
        """
        ...

    def state(self) -> tuple[int, int]:
        """A value that changes whenever a credential was added, removed or changed, or has expired."""
        ...


class KnowsAll:
    """The part of a validator that always knows all its credentials."""

    __slots__ = ()

    def identify(self, token: str) -> Identity:
        """The identity of a token."""
        raise NotImplementedError

    async def lookup(self, token: str) -> Identity:
        """Nothing is left to look up."""
        return self.identify(token)

    async def learn(self, credential: str) -> None:
        """Nothing is left to learn."""
        del credential


async def identity_of(validator: TokenValidator, token: str) -> Identity:
    """The identity of a token, looked up if it must be. For transports; raises as `lookup` does."""
    try:
        return validator.identify(token)
    except LookupRequired:
        return await validator.lookup(token)


@dataclass(frozen=True, slots=True)
class AllowAll(KnowsAll):
    """Dev mode on loopback: every caller is an administrator of the default tenant."""

    tenant: str = "default"

    def identify(self, token: str) -> Identity:
        del token
        return _administrator(self.tenant)

    def recheck(self, identity: Identity, *, uses: bool = True) -> Identity:
        del identity, uses
        return _administrator(self.tenant)

    def state(self) -> tuple[int, int]:
        return 0, 0


@lru_cache(maxsize=16)
def _administrator(tenant: str) -> Identity:
    return Identity(tenant=tenant, subject="dev", scopes=frozenset(Scope))


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """One entry of the file: the digest of its token, what it permits, when it expires."""

    digest: bytes
    identity: Identity
    expires_at: float | None = None  # seconds since 1970, by this machine's clock; None: never


class StaticTokens(KnowsAll):
    """A set of credentials that does not change, except that some expire."""

    def __init__(self, credentials: Iterable[Credential] = (), *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._by_digest = {one.digest: one for one in credentials}
        self._by_credential = {one.identity.credential: one for one in self._by_digest.values()}
        self._expiries = sorted(one.expires_at for one in self._by_digest.values() if one.expires_at is not None)
        # Tokens that were accepted, so that each is hashed once; bounded by the set itself. Python compares the text
        # only if a keyed 64-bit hash of it is equal, so the time of a lookup reveals nothing about a token.
        self._accepted: dict[str, Credential] = {}

    def identify(self, token: str) -> Identity:
        known = self._accepted.get(token)
        if known is None:
            # A dict is safe here: the caller cannot choose the digest, so the time of the lookup reveals nothing.
            known = self._by_digest.get(digest_of(token))
            if known is None:
                raise Unauthenticated("unknown token" if token else "no token", missing=not token)
            self._accepted[token] = known
        if known.expires_at is not None and known.expires_at <= self._clock():
            raise Unauthenticated(f"token of {known.identity.subject} has expired")
        return known.identity

    def recheck(self, identity: Identity, *, uses: bool = True) -> Identity:
        del uses
        known = self._by_credential.get(identity.credential)
        if known is None:
            raise TokenRevoked(f"the token of {identity.subject} is not valid any more")
        if known.expires_at is not None and known.expires_at <= self._clock():
            raise TokenRevoked(f"the token of {identity.subject} has expired")
        return known.identity

    @property
    def expired(self) -> int:
        """How many credentials have expired."""
        return bisect_right(self._expiries, self._clock()) if self._expiries else 0

    def __len__(self) -> int:
        return len(self._by_digest)


class TokenFile(KnowsAll):
    """Static tokens in a file that is read again when it changes, so that a token can be revoked at run time.

    - A file that cannot be parsed or opened changes nothing: a typing error must not disconnect every client.
    - A file that is *gone* revokes all tokens: that is the meaning of removing it.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        self._stamp: tuple[int, ...] | None = None
        self._changes = 0
        self._missing = 0  # consecutive refreshes that did not find the file
        self._tokens = StaticTokens(clock=clock)
        try:
            self.refresh()
        except OSError as error:
            raise InvalidSetting("--tokens", f"{path} cannot be read ({error.strerror})") from error

    @property
    def gone(self) -> bool:
        """Whether all tokens are revoked because the file was removed."""
        return self._missing >= GONE_LOOKS

    def identify(self, token: str) -> Identity:
        return self._tokens.identify(token)

    def recheck(self, identity: Identity, *, uses: bool = True) -> Identity:
        return self._tokens.recheck(identity, uses=uses)

    def state(self) -> tuple[int, int]:
        return self._changes, self._tokens.expired

    def refresh(self) -> bool:
        """Read the file if it has changed; True if so. Raises InvalidSetting or OSError, and keeps the old tokens."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._missing += 1
            if self._stamp is None or self._missing < GONE_LOOKS:
                raise
            if not len(self._tokens):
                return False
            self._take(())
            return True
        # Inode and ctime as well: a copy can have the size and mtime of the original.
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns)
        if stamp == self._stamp and not self.gone:
            self._missing = 0
            return False
        try:
            text = self._path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise InvalidSetting(str(self._path), "is not UTF-8") from None
        self._take(parse_tokens(text, source=str(self._path)))
        self._stamp, self._missing = stamp, 0
        return True

    def _take(self, credentials: Iterable[Credential]) -> None:
        self._tokens = StaticTokens(credentials, clock=self._clock)
        self._changes += 1


def parse_tokens(text: str, *, source: str) -> list[Credential]:
    """Read the JSON form; raises InvalidSetting naming the entry, never the token."""
    try:
        entries = json.loads(text, object_pairs_hook=_Pairs)
    except ValueError as error:
        raise InvalidSetting(source, f"is not JSON: {error}") from None
    except RecursionError:
        raise InvalidSetting(source, "is nested too deep") from None
    if not isinstance(entries, _Pairs):
        raise InvalidSetting(source, f"must be an object {_FORM}")
    found: dict[bytes, Credential] = {}
    for number, (token, entry) in enumerate(entries, 1):
        digest = _digest(token, source, number)
        if digest in found:
            # Otherwise a token that was removed once would stay valid by its second entry.
            raise InvalidSetting(source, f"token {number} is listed twice", hint="remove one of the entries")
        found[digest] = _credential(digest, entry, source, number)
    return list(found.values())


class _Pairs(list[tuple[str, object]]):
    """A JSON object as written: a dict would hide a repeated name."""


def _digest(token: str, source: str, number: int) -> bytes:
    if token.startswith("sha256:"):
        hashed = _HASHED.fullmatch(token)
        if hashed is None:
            raise InvalidSetting(source, f"token {number}: sha256: must be followed by 64 hexadecimal digits")
        return bytes.fromhex(hashed[1])
    if token.startswith(PREFIX):
        raise InvalidSetting(
            source, f"token {number} begins with {PREFIX}, as API keys do", hint="choose another token, or use a key"
        )
    if len(token) < 16:
        raise InvalidSetting(source, f"token {number} has {len(token)} characters; it needs 16 or more")
    return digest_of(token)


def _credential(digest: bytes, entry: object, source: str, number: int) -> Credential:
    given = dict(entry) if isinstance(entry, _Pairs) else {}
    scopes = _scopes(given.get("scopes"), source, number)
    # A token that reaches all tenants belongs to no tenant and no topic.
    of_all = Scope.SYSTEM in scopes
    if of_all and (len(scopes) > 1 or {"tenant", "topics"} & set(given)):
        raise InvalidSetting(
            source, f'token {number}: the scope "system" cannot be combined with other scopes, a tenant or topics'
        )
    if not (set() if of_all else {"tenant"}) <= set(given) <= _ENTRY:
        raise InvalidSetting(
            source,
            f"token {number} must have tenant, and can have name, expires, scopes, topics and rates; nothing else",
        )
    if (recorded := scopes & _RECORDED) and "name" not in given:
        raise InvalidSetting(
            source,
            f'token {number} needs a name: the audit log shows who used the scope "{min(recorded)}"',
            hint='add "name": "the person or program that has this token"',
        )
    # Names the credential without revealing the token, nor the digest, which may be in a file.
    credential = hashlib.sha256(b"headgate credential" + digest).hexdigest()[:16]
    try:
        name = given.get("name", f"token-{credential[:8]}")
        identity = Identity(
            tenant="" if of_all else check_tenant(given["tenant"]),
            subject=check_text(name, field="name", low=1, high=100),
            scopes=scopes,
            topics=_topics(given.get("topics")),
            credential=credential,
            rates=_rates(given.get("rates")),
        )
        return Credential(digest=digest, identity=identity, expires_at=_expires_at(given.get("expires")))
    except InvalidSetting:
        raise
    except InvalidInput as error:
        raise InvalidSetting(source, f"token {number}: {error}") from None


def _scopes(value: object, source: str, number: int) -> frozenset[Scope]:
    if value is None:
        return WORKER_SCOPES
    try:
        return frozenset(Scope(str(one)) for one in _list(value))
    except ValueError:
        raise InvalidSetting(source, f"token {number}: unknown scope; must be one of {', '.join(Scope)}") from None


def _topics(value: object) -> TopicSet | None:
    return None if value is None else check_topic_patterns(_list(value))


def _rates(value: object) -> Rates | None:
    if value is None:
        return None
    if not isinstance(value, _Pairs):
        raise InvalidInput("rates", 'must be an object such as {"submit": "100/1s:200"}')
    return Rates.parse(dict(value), field="rates")


def _expires_at(value: object) -> float | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidInput("expires", "must be a date and time with a zone, such as 2027-01-31T00:00:00Z")
    return moment.timestamp()


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) and not isinstance(value, _Pairs) else [value]


def same_rights(one: Identity, other: Identity) -> bool:
    """Whether two identities permit the same; their names do not matter."""
    return one is other or (one.tenant, one.scopes, one.topics) == (other.tenant, other.scopes, other.topics)
