"""The form of an encrypted payload, result or error, as far as one without the key can read it.

    bytes  0..3    00 68 67 45 ("\\0hgE"): no JSON text and no UTF-8 text of people begins like this
    byte   4       version, 1
    byte   5       1 if it is bound to the id of its job, else 0
    byte   6       length of the key id
    …              key id, 24 bytes of salt, the ciphertext with its tag of 16 bytes

An error is text: `encrypted:` and the same in base64url. `sdk/encryption.py` makes and opens them (ADR 41).
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Final

MAGIC: Final = b"\0hgE"
VERSION: Final = 1
SALT_BYTES: Final = 24
TAG_BYTES: Final = 16
KEY_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
CONTENT_TYPE: Final = "application/vnd.headgate.encrypted"
TEXT_PREFIX: Final = "encrypted:"
_TEXT: Final = re.compile(r"encrypted:([A-Za-z0-9_-]{40,})")
_FIXED: Final = len(MAGIC) + 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The parts of an encrypted body. `header` is authenticated with the ciphertext."""

    key_id: str
    bound: bool
    header: bytes
    salt: bytes
    ciphertext: bytes


def header_of(key_id: str, *, bound: bool) -> bytes:
    """The first part of an envelope."""
    name = key_id.encode("ascii")
    return MAGIC + bytes((VERSION, bound, len(name))) + name


def read_envelope(body: bytes) -> Envelope | None:
    """The parts of an encrypted body; None if it is not one of this version."""
    if not body.startswith(MAGIC) or len(body) < _FIXED or body[4] != VERSION or body[5] > 1:
        return None
    end = _FIXED + body[6]
    salt_end = end + SALT_BYTES
    if len(body) < salt_end + TAG_BYTES:
        return None
    try:
        key_id = body[_FIXED:end].decode("ascii")
    except UnicodeDecodeError:
        return None
    if KEY_ID.fullmatch(key_id) is None:
        return None
    return Envelope(
        key_id=key_id,
        bound=body[5] == 1,
        header=body[:end],
        salt=body[end:salt_end],
        ciphertext=body[salt_end:],
    )


def is_encrypted(body: bytes) -> bool:
    """Whether a body claims to be encrypted, in this version or a later one."""
    return body.startswith(MAGIC)


def content_type_of(body: bytes) -> str | None:
    """The content type of an encrypted body; None for any other."""
    return CONTENT_TYPE if is_encrypted(body) else None


def description(body: bytes) -> str:
    """What people see instead of an encrypted body."""
    found = read_envelope(body)
    key = f"key {found.key_id}" if found is not None else "unknown version"
    return f"(encrypted, {key}, {len(body)} bytes)"


def as_text(body: bytes) -> str:
    """An envelope as text, for errors."""
    return TEXT_PREFIX + base64.urlsafe_b64encode(body).rstrip(b"=").decode("ascii")


def from_text(text: str) -> bytes | None:
    """The envelope in a text that is one; None for any other text."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    try:
        body = base64.urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4))
    except (binascii.Error, ValueError):
        return None
    return body if is_encrypted(body) else None


def described(text: str) -> str:
    """A text in which each encrypted part is replaced by what people see instead."""
    if TEXT_PREFIX not in text:
        return text

    def instead(found: re.Match[str]) -> str:
        body = from_text(found[0])
        return found[0] if body is None else description(body)

    return _TEXT.sub(instead, text)
