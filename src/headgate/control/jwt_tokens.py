"""JWTs: a signed token of a configured issuer becomes an identity.

The issuer that a token names selects keys, audience and algorithms; everything else in the token is believed only after
its signature was verified with a key of that issuer. Header fields that name or carry keys (`jku`, `x5u`, `jwk`, `x5c`)
are ignored, and `crit` is refused. A token is verified once, and then known by its digest until it expires.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from joserfc import jws
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jws import JWSRegistry

from headgate.control.jwt_keys import IssuerKeys, TrustedKey
from headgate.domain import limits
from headgate.domain.api_keys import digest_of
from headgate.domain.errors import InvalidInput
from headgate.domain.identity import (
    Identity,
    LookupRequired,
    Scope,
    TokenRevoked,
    Unauthenticated,
)
from headgate.domain.jwt_issuers import CREDENTIAL_PREFIX, Issuer
from headgate.domain.strict_json import parse_object
from headgate.domain.topic_sets import TopicSet, check_topic_patterns
from headgate.domain.validation import check_tenant, check_text

VERIFIED_MAX: Final = 10_000
LOOK_SECONDS: Final = 5.0
_SCOPES: Final = frozenset(Scope) - {Scope.SYSTEM}
"""A JWT belongs to a tenant: what reaches all of them needs an API key or a token of the file."""


class _Registry(JWSRegistry):
    """One algorithm, and headers as identity providers send them."""

    max_header_length = 2_048

    def get_alg(self, name: str) -> Any:
        # As configured for the issuer, whatever the library recommends.
        if not self.allowed or name not in self.allowed:
            raise UnsupportedAlgorithmError(f"{name} is not allowed")
        return self.algorithms[name]


class JwtTokens:
    """The JWTs of all configured issuers. Fits `TokenValidator`."""

    def __init__(self, keys: Sequence[IssuerKeys], *, clock: Callable[[], float] = time.time) -> None:
        self._issuers = {one.issuer.issuer: one for one in keys}
        self._clock = clock
        self._verified: OrderedDict[bytes, tuple[Identity, str]] = OrderedDict()  # by digest; with the key's thumbprint
        self._stopped = False

    # ------------------------------------------------------------------ TokenValidator

    def identify(self, token: str) -> Identity:
        """The identity of a token. Raises Unauthenticated, LookupRequired, CredentialsUnavailable."""
        return self._identity(token, last=False)

    async def lookup(self, token: str) -> Identity:
        """The same, after the keys of its issuer were fetched again, if that is permitted now."""
        await self._keys_of(_payload(token.split("."))).refetch()
        return self._identity(token, last=True)

    async def learn(self, credential: str) -> None:
        """Bulk operations do not end with a JWT."""
        del credential

    def recheck(self, identity: Identity, *, uses: bool = True) -> Identity:
        """The same identity, as long as the token has not expired and its key is trusted. Raises TokenRevoked."""
        del uses
        if identity.expires_at is None or identity.expires_at <= self._clock():
            raise TokenRevoked(f"the token of {identity.subject} has expired")
        thumbprint = identity.credential[len(CREDENTIAL_PREFIX) :][:16]
        if not any(thumbprint in one.thumbprints for one in self._issuers.values()):
            raise TokenRevoked(f"the key that signed the token of {identity.subject} is not trusted any more")
        return identity

    def state(self) -> tuple[int, int]:
        """Bulk operations do not end with a JWT."""
        return 0, 0

    # ------------------------------------------------------------------ the service

    async def run(self) -> None:
        """Fetch the keys of all issuers when it is time to, until `stop`."""
        while not self._stopped:
            await asyncio.gather(*(one.refresh_if_due() for one in self._issuers.values()))
            await asyncio.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """Fetch no more."""
        self._stopped = True

    # ------------------------------------------------------------------ verification

    def _identity(self, token: str, *, last: bool) -> Identity:
        digest = digest_of(token)
        known = self._verified.get(digest)
        if known is not None:
            identity, thumbprint = known
            if identity.expires_at is not None and identity.expires_at <= self._clock():
                del self._verified[digest]
                raise Unauthenticated(f"the token of {identity.subject} has expired")
            if any(thumbprint in one.thumbprints for one in self._issuers.values()):
                return identity
            del self._verified[digest]
        identity, thumbprint = self._verify(token, last=last)
        self._verified[digest] = identity, thumbprint
        if len(self._verified) > VERIFIED_MAX:
            self._verified.popitem(last=False)
        return identity

    def _verify(self, token: str, *, last: bool) -> tuple[Identity, str]:
        parts = token.split(".")
        keys = self._keys_of(_payload(parts))
        issuer = keys.issuer
        header = _part(parts[0], "header")
        algorithm, kid = header.get("alg"), header.get("kid")
        # The issuer's configuration decides. The header only selects among the algorithms that it permits.
        if algorithm not in issuer.algorithms:
            raise Unauthenticated(f"algorithm {str(algorithm)[:20]!r} is not permitted for {issuer.issuer}")
        if "crit" in header or "b64" in header:
            raise Unauthenticated("critical header fields are not supported")
        if kid is not None and (not isinstance(kid, str) or not 1 <= len(kid) <= 200):
            raise Unauthenticated("malformed key id")
        key = keys.find(kid, algorithm)
        if key is None:
            if kid is not None and not last and keys.may_refetch:
                raise LookupRequired
            raise Unauthenticated("unknown key id" if kid is not None else "no key id, and several keys fit")
        return _identity(_verified_claims(token, key, algorithm), issuer, key, now=self._clock()), key.thumbprint

    def _keys_of(self, claims: Mapping[str, Any]) -> IssuerKeys:
        name = claims.get("iss")
        found = self._issuers.get(name) if isinstance(name, str) else None
        if found is None:
            raise Unauthenticated("unknown issuer")
        return found


def _payload(parts: Sequence[str]) -> Mapping[str, Any]:
    """The claims as they stand, to select the issuer."""
    if len(parts) != 3:
        raise Unauthenticated("malformed token")
    return _part(parts[1], "claims")


def _part(text: str, what: str) -> dict[str, Any]:
    try:
        return parse_object(base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)))
    except (ValueError, binascii.Error) as error:
        raise Unauthenticated(f"malformed {what}: {error}") from None


def _verified_claims(token: str, key: TrustedKey, algorithm: str) -> dict[str, Any]:
    try:
        found = jws.deserialize_compact(
            token, key.key, registry=_Registry(algorithms=[algorithm], strict_check_header=False)
        )
    except (JoseError, ValueError, TypeError) as error:
        raise Unauthenticated(f"signature: {error}") from None
    try:
        return parse_object(found.payload)
    except ValueError as error:
        raise Unauthenticated(f"malformed claims: {error}") from None


def _identity(claims: Mapping[str, Any], issuer: Issuer, key: TrustedKey, *, now: float) -> Identity:
    if claims.get("iss") != issuer.issuer:
        raise Unauthenticated("wrong issuer")
    audience = claims.get("aud")
    if issuer.audience not in (audience if isinstance(audience, list) else [audience]):
        raise Unauthenticated(f"wrong audience for {issuer.issuer}")
    expires = _check_times(claims, issuer, now)
    names = issuer.claims
    try:
        subject = check_text(claims.get(names.subject), field=names.subject, high=limits.KEY_NAME_MAX_CHARS)
        tenant = _tenant(claims, issuer)
        topics = _topics(claims, names.topics)
    except InvalidInput as error:
        raise Unauthenticated(f"claims: {error}") from None
    holder = hashlib.sha256(f"{issuer.issuer}\n{tenant}\n{subject}".encode()).hexdigest()[:16]
    return Identity(
        tenant=tenant,
        subject=subject,
        scopes=_scopes(claims, issuer),
        topics=topics,
        # Of the holder, not of the one token: a new token does not reset a rate limit.
        credential=f"{CREDENTIAL_PREFIX}{key.thumbprint}-{holder}",
        rates=issuer.rates,
        expires_at=expires,
    )


def _check_times(claims: Mapping[str, Any], issuer: Issuer, now: float) -> float:
    """The time at which the token expires, with the permitted skew."""
    skew = issuer.skew.total_seconds()
    for name in ("exp", "iat", "nbf"):
        value = claims.get(name)
        if value is None and name == "nbf":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
            raise Unauthenticated(f"{name} is missing or not a time")
    expires, issued = float(claims["exp"]), float(claims["iat"])
    if expires + skew <= now:
        raise Unauthenticated("expired")
    if issued - skew > now or float(claims.get("nbf", 0)) - skew > now:
        raise Unauthenticated("not valid yet")
    oldest = issued + issuer.max_age.total_seconds()
    if oldest + skew <= now:
        raise Unauthenticated("older than max_age")
    return min(expires, oldest) + skew


def _tenant(claims: Mapping[str, Any], issuer: Issuer) -> str:
    given = [claims[name] for name in issuer.claims.tenant if name in claims]
    if issuer.tenant:
        given.append(issuer.tenant)
    if not given:
        raise InvalidInput("tenant", f"none of the claims {', '.join(issuer.claims.tenant)} is present")
    if any(one != given[0] for one in given):
        raise InvalidInput("tenant", "the tenant claims disagree")
    return check_tenant(given[0])


def _scopes(claims: Mapping[str, Any], issuer: Issuer) -> frozenset[Scope]:
    """The scopes that are ours: tokens of identity providers have others as well."""
    value = claims.get(issuer.claims.scopes, "")
    names = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    prefix = issuer.scope_prefix
    given = {name.removeprefix(prefix) for name in names if isinstance(name, str) and name.startswith(prefix)}
    return frozenset(one for one in _SCOPES if one in given)


def _topics(claims: Mapping[str, Any], name: str) -> TopicSet | None:
    if name not in claims:
        return None
    value = claims[name]
    if not isinstance(value, list):
        raise InvalidInput(name, "must be a list of topics")
    return check_topic_patterns(value, field=name)
