"""Tokens of an issuer that tests make: keys, sets of keys, signed tokens, and tokens that are signed wrongly."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any, Final

from joserfc import jws
from joserfc.jwk import ECKey, Key, RSAKey

ISSUER: Final = "https://login.example.com/"
AUDIENCE: Final = "headgate"


def new_key(kid: str, curve: Any = "P-256") -> ECKey:
    """A new key pair with this id; made in a moment, other than RSA."""
    return ECKey.generate_key(curve, parameters={"kid": kid})


def key_set(*keys: Key) -> bytes:
    """The public keys, as an issuer publishes them."""
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


def claims(now: float | None = None, **more: Any) -> dict[str, Any]:
    """Good claims; None removes one."""
    at = int(time.time() if now is None else now)
    found = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "ana",
        "tid": "acme",
        "scope": "openid submit work read",
        "iat": at,
        "exp": at + 300,
    } | more
    return {name: value for name, value in found.items() if value is not None}


def signed(key: Key, payload: Mapping[str, Any] | str, *, alg: str = "ES256", **header: Any) -> str:
    """A token; header fields of None are left out."""
    fields = {"alg": alg, "typ": "JWT", "kid": key.kid} | header
    text = payload if isinstance(payload, str) else json.dumps(payload)
    registry = jws.JWSRegistry(algorithms=[alg], strict_check_header=False)
    return jws.serialize_compact(
        {name: one for name, one in fields.items() if one is not None}, text, key, registry=registry
    )


def unsigned(payload: Mapping[str, Any], *, alg: str = "none", signature: str = "", **header: Any) -> str:
    """A token without a signature, or with any."""
    return f"{part({'alg': alg, **header})}.{part(payload)}.{signature}"


def part(value: Mapping[str, Any] | str) -> str:
    """One part of a token."""
    text = value if isinstance(value, str) else json.dumps(value)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def signed_with_public_key(key: Key, payload: Mapping[str, Any]) -> str:
    """The classical confusion: HMAC, with the public key as the secret."""
    assert isinstance(key, RSAKey | ECKey)
    text = f"{part({'alg': 'HS256', 'kid': key.kid})}.{part(payload)}"
    signature = hmac.digest(key.as_pem(private=False), text.encode(), "sha256")
    return f"{text}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"
