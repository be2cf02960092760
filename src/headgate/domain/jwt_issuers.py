"""Issuers of JWTs that a server trusts, as configured. See docs/howto/keys.md.

Each issuer has its own audience, keys and algorithms. The algorithms are all asymmetric: with none of them can a public
key be used as a shared secret, and `none` is not among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from headgate.domain.errors import InvalidInput, InvalidSetting
from headgate.domain.rate_limits import Rates
from headgate.domain.strict_json import DuplicateName, parse_object
from headgate.domain.units import duration
from headgate.domain.validation import check_tenant, check_text, shown

CREDENTIAL_PREFIX: Final = "jwt-"
KEY_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    **dict.fromkeys(("Ed25519", "EdDSA"), "OKP"),
}
"""The type of key of each algorithm that can be configured."""
TENANT_CLAIMS: Final = ("tid", "tenantId", "tenant_id", "organizationId", "organization_id")
SKEW_DEFAULT: Final = timedelta(seconds=5)
SKEW_MAX: Final = timedelta(seconds=60)
AGE_MAX: Final = timedelta(days=1)
AGE_DEFAULT: Final = timedelta(hours=12)
ISSUERS_MAX: Final = 20
_NAMES: Final = frozenset(
    {
        *("issuer", "audience", "algorithms", "jwks_url", "keys_file", "tenant", "claims", "skew", "max_age"),
        *("rates", "scope_prefix"),
    }
)
_CLAIMS: Final = frozenset({"tenant", "subject", "scopes", "topics"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The names of the claims that an identity is made of."""

    tenant: tuple[str, ...] = TENANT_CLAIMS  # all that are present must have the same value
    subject: str = "sub"
    scopes: str = "scope"
    topics: str = "topics"


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """One issuer. `tenant` is for tokens without a tenant claim; if there is a claim, it must be the same."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    jwks_url: str = ""
    keys_file: Path | None = None
    tenant: str = ""
    claims: Claims = field(default_factory=Claims)
    scope_prefix: str = ""
    skew: timedelta = SKEW_DEFAULT
    max_age: timedelta = AGE_DEFAULT
    rates: Rates | None = None


def parse_issuers(text: str, *, source: str) -> list[Issuer]:
    """Read `{"issuers": [{…}, …]}`; raises InvalidSetting naming the issuer and the field."""
    try:
        entries = parse_object(text).get("issuers")
    except DuplicateName as error:
        raise InvalidSetting(source, str(error)) from None
    except ValueError as error:
        raise InvalidSetting(source, f"is not a JSON object: {error}") from None
    if not isinstance(entries, list) or not 1 <= len(entries) <= ISSUERS_MAX:
        raise InvalidSetting(source, f'must be {{"issuers": […]}} with 1 to {ISSUERS_MAX} issuers')
    found: dict[str, Issuer] = {}
    for number, entry in enumerate(entries, 1):
        try:
            one = _issuer(entry, Path(source).parent)
        except InvalidInput as error:
            raise InvalidSetting(source, f"issuer {number}: {error}") from None
        if one.issuer in found:
            raise InvalidSetting(source, f"issuer {number}: {shown(one.issuer)} is listed twice")
        found[one.issuer] = one
    return list(found.values())


def _issuer(entry: object, folder: Path) -> Issuer:
    if not isinstance(entry, dict):
        raise InvalidInput("issuer", "must be an object")
    if unknown := sorted(set(entry) - _NAMES):
        raise InvalidInput(unknown[0], "is not a known field", hint=f"use {', '.join(sorted(_NAMES))}")
    algorithms = _texts(entry.get("algorithms"), field="algorithms")
    for name in algorithms:
        if name not in KEY_TYPES:
            raise InvalidInput("algorithms", f"has no algorithm {shown(name)}", hint=f"use {', '.join(KEY_TYPES)}")
    url, file = entry.get("jwks_url", ""), entry.get("keys_file", "")
    if bool(url) == bool(file):
        raise InvalidInput("jwks_url", "and keys_file: give exactly one of them")
    tenant = entry.get("tenant", "")
    return Issuer(
        issuer=check_text(entry.get("issuer"), field="issuer", high=500),
        audience=check_text(entry.get("audience"), field="audience", high=500),
        algorithms=algorithms,
        jwks_url=check_jwks_url(url) if url else "",
        keys_file=folder / check_text(file, field="keys_file", high=4_000) if file else None,
        tenant=check_tenant(tenant) if tenant else "",
        claims=_claims(entry.get("claims", {})),
        scope_prefix=check_text(entry.get("scope_prefix", ""), field="scope_prefix", low=0, high=100),
        skew=_span(entry, "skew", SKEW_DEFAULT, SKEW_MAX),
        max_age=_span(entry, "max_age", AGE_DEFAULT, AGE_MAX),
        rates=_rates(entry.get("rates")),
    )


def check_jwks_url(value: object) -> str:
    """Accept an https URL, or http on loopback: who can change the keys can make any token."""
    text = check_text(value, field="jwks_url", high=2_000)
    try:
        parts = urlsplit(text)
        host, _port = parts.hostname or "", parts.port
    except ValueError:
        raise InvalidInput("jwks_url", "is not a URL") from None
    local = parts.scheme == "http" and host in ("127.0.0.1", "::1", "localhost")
    if not host or parts.username is not None or parts.fragment or not (parts.scheme == "https" or local):
        raise InvalidInput(
            "jwks_url", "must be an https:// URL without user and fragment; http:// is for loopback only"
        )
    return text


def _claims(value: object) -> Claims:
    if not isinstance(value, dict) or set(value) - _CLAIMS:
        raise InvalidInput("claims", f"must be an object with {', '.join(sorted(_CLAIMS))}")
    found: dict[str, object] = {
        name: check_text(value[name], field=f"claims.{name}", high=100) for name in _CLAIMS & set(value) - {"tenant"}
    }
    if "tenant" in value:
        found["tenant"] = _texts(value["tenant"], field="claims.tenant")
    return Claims(**found)  # type: ignore[arg-type]  # checked above


def _texts(value: object, *, field: str) -> tuple[str, ...]:
    given = value if isinstance(value, list) else [value]
    if not given or len(given) > 20:
        raise InvalidInput(field, "must be a list of 1 to 20 names")
    return tuple(check_text(one, field=field, high=100) for one in given)


def _span(entry: Mapping[str, object], name: str, default: timedelta, most: timedelta) -> timedelta:
    if name not in entry:
        return default
    span = duration(check_text(entry[name], field=name, high=20), field=name)
    if span > most:
        raise InvalidInput(name, f"must be at most {most.total_seconds():g} s, got {span.total_seconds():g} s")
    return span


def _rates(value: object) -> Rates | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidInput("rates", 'must be an object such as {"submit": "100/1s:200"}')
    return Rates.parse(value, field="rates")
