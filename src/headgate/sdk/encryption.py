"""Encryption in the client: servers and the database store what only producers and workers can read.

Each body is encrypted by AES-256-GCM under a key of its own, derived from yours and a random salt of 24 bytes. So one
key may encrypt any number of jobs: plain GCM, with its nonces of 12 bytes, is safe for about 2**32 of them. A body is
bound to what it is (a payload, a result, an error), and to the id of its job where that is known when it is made: it
cannot be copied to another job. A topic is no part of this, since jobs can be moved.

Not bound to a job are payloads of schedules, whose jobs are made later by the server, and of submits with `key` or
`unique`, which may end up as the payload of a job that exists already. Their salt is derived from the payload as well:
the same submit again is the same bytes, or it would be a conflict.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import Mapping, Sequence
from enum import IntEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Self

from headgate.domain import limits
from headgate.domain.envelope import (
    KEY_ID,
    SALT_BYTES,
    TAG_BYTES,
    as_text,
    from_text,
    header_of,
    is_encrypted,
    read_envelope,
)
from headgate.domain.errors import HeadgateError, InvalidInput, TooLarge
from headgate.domain.validation import shown

if TYPE_CHECKING:
    from headgate.sdk.options import Prepared

KEYS_VARIABLE: Final = "HEADGATE_ENCRYPTION_KEYS"
KEY_BYTES: Final = 32
_SUBKEY: Final = b"headgate/1 body key"
_SALT: Final = b"headgate/1 salt"
_HINT: Final = "give the worker the key, in its keys for reading"


class Purpose(IntEnum):
    """What a body is; a result cannot be passed off as a payload."""

    PAYLOAD = 1
    RESULT = 2
    ERROR = 3


class MissingKey(HeadgateError):
    """A body is encrypted with a key that this program does not have; another deployment may have it."""

    code = "missing_key"

    def __init__(self, what: str, key_id: str) -> None:
        super().__init__(f'{what} is encrypted with the key "{key_id}", which this program does not have; {_HINT}')
        self.key_id = key_id


class DecryptionFailed(HeadgateError):
    """A body was changed, belongs to another job, or its key has another value here."""

    code = "decryption_failed"


class Encryption:
    """The keys of a program, by their ids: all of them read, one of them writes.

    >>> Headgate(encryption=Encryption({"2026-11": new, "2026-05": old}, write="2026-11"))

    A key is 32 bytes, as bytes or as base64 text (`Encryption.new_key()`). With `errors=False` texts of errors are sent
    as they are. With `accept_plain=False` a worker refuses payloads that are not encrypted: set it when all producers
    encrypt. It does not concern results and errors.
    """

    def __init__(
        self, keys: Mapping[str, bytes | str], *, write: str, errors: bool = True, accept_plain: bool = True
    ) -> None:
        """Raises InvalidInput for a key that cannot be used; no key is shown."""
        self._keys = {_key_id(name): _key(name, value) for name, value in keys.items()}
        if write not in self._keys:
            raise InvalidInput(
                "write", f"is not one of the keys, got {shown(write)}", hint="keys are " + ", ".join(keys)
            )
        self._write, self.errors, self.accept_plain = write, errors, accept_plain
        self._cipher = _cipher()

    def __repr__(self) -> str:
        return f"<Encryption write={self._write} keys={', '.join(self._keys)}>"

    @staticmethod
    def new_key() -> str:
        """A new random key, as base64 text."""
        return base64.b64encode(os.urandom(KEY_BYTES)).decode("ascii")

    @classmethod
    def from_text(cls, text: str, *, field: str = KEYS_VARIABLE) -> Self:
        """Read `id:key,id:key`; the first one writes."""
        pairs = [pair.strip().partition(":") for pair in text.split(",") if pair.strip()]
        if not pairs or not all(separator for _, separator, _ in pairs):
            raise InvalidInput(field, "is not of the form id:key,id:key", hint="the value is not shown")
        keys = {name: value for name, _, value in pairs}
        if len(keys) < len(pairs):
            names = [name for name, _, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInput(field, f"has the key id {shown(twice)} twice", hint="give each key an id of its own")
        return cls(keys, write=pairs[0][0])

    # --- bodies ------------------------------------------------------------------------------------------------------

    def seal(self, body: bytes, purpose: Purpose, job_id: bytes = b"", *, same: bytes | None = None) -> bytes:
        """Encrypt a body; without a job id it is not bound to a job. `same`: equal bodies become equal bytes."""
        key = self._keys[self._write]
        if same is None:
            salt = os.urandom(SALT_BYTES)
        else:
            salt = _mac(_mac(key, _SALT), bytes((purpose,)) + _mac(key, same) + body)[:SALT_BYTES]
        header = header_of(self._write, bound=bool(job_id)) + salt
        cipher = self._cipher(_mac(key, _SUBKEY + salt[:12]))
        sealed: bytes = cipher.encrypt(salt[12:], body, header + bytes((purpose,)) + job_id)
        return header + sealed

    def open(self, body: bytes, purpose: Purpose, job_id: bytes, *, what: str) -> bytes:
        """Decrypt a body of this job; one that is not encrypted is returned as it is.

        Raises MissingKey, and DecryptionFailed for one that cannot be what was encrypted for this job.
        """
        if not is_encrypted(body):
            return body
        found = read_envelope(body)
        if found is None:
            raise DecryptionFailed(f"{what} is encrypted in a form that this release does not know; upgrade headgate")
        key = self._keys.get(found.key_id)
        if key is None:
            raise MissingKey(what, found.key_id)
        bound_to = job_id if found.bound else b""
        cipher = self._cipher(_mac(key, _SUBKEY + found.salt[:12]))
        try:
            opened: bytes = cipher.decrypt(
                found.salt[12:], found.ciphertext, found.header + found.salt + bytes((purpose,)) + bound_to
            )
        except _invalid_tag() as error:
            raise DecryptionFailed(
                f'{what} cannot be decrypted with the key "{found.key_id}": it was changed, was encrypted for another '
                "job, or the key has another value here"
            ) from error
        return opened

    # --- payloads ----------------------------------------------------------------------------------------------------

    def seal_payloads(self, payloads: Sequence[bytes], ids: Sequence[bytes], options: Prepared) -> list[bytes]:
        """Encrypt the payloads of a submit."""
        key = options.given.get("key")
        if key is None and "unique" not in options.given:
            repeats = [job_id if options.id is not None else None for job_id in ids]
            return [
                _fits(self.seal(body, Purpose.PAYLOAD, job_id, same=same))
                for body, job_id, same in zip(payloads, ids, repeats, strict=True)
            ]
        same = b"key " + key.encode() if key is not None else b"unique"
        return [_fits(self.seal(body, Purpose.PAYLOAD, same=same)) for body in payloads]

    def seal_template(self, payload: bytes, *, name: str) -> bytes:
        """Encrypt the payload of a schedule; the same schedule again is the same bytes."""
        return _fits(self.seal(payload, Purpose.PAYLOAD, same=b"schedule " + name.encode()))

    def open_payload(self, body: bytes, job_id: bytes) -> bytes:
        """Decrypt the payload of a job that a worker has got."""
        if not self.accept_plain and not is_encrypted(body):
            raise DecryptionFailed("the payload is not encrypted, and this worker accepts encrypted ones only")
        return self.open(body, Purpose.PAYLOAD, job_id, what="the payload")

    # --- results and errors ------------------------------------------------------------------------------------------

    def seal_result(self, result: bytes, job_id: bytes) -> bytes:
        """Encrypt a result; none stays none."""
        return _fits(self.seal(result, Purpose.RESULT, job_id), what="result") if result else b""

    def open_result(self, result: bytes, job_id: bytes) -> bytes:
        """Decrypt a result."""
        return self.open(result, Purpose.RESULT, job_id, what="the result")

    def seal_text(self, text: str, job_id: bytes, *, limit: int) -> str:
        """Encrypt a text of an error, cut so that what comes out has at most `limit` characters."""
        if not text:
            return ""
        overhead = len(header_of(self._write, bound=True)) + SALT_BYTES + TAG_BYTES
        most = (limit - len("encrypted:")) * 3 // 4 - overhead - 3
        cut = text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore").encode()
        return as_text(self.seal(cut, Purpose.ERROR, job_id))

    def open_text(self, text: str, job_id: bytes) -> str:
        """A text of an error as it was; one that cannot be decrypted stays as it is."""
        head, found, tail = text.partition("encrypted:")
        body = from_text(found + tail) if found else None
        if body is None:
            return text
        try:
            return head + self.open(body, Purpose.ERROR, job_id, what="the error").decode("utf-8", "replace")
        except (MissingKey, DecryptionFailed):
            return text


def encryption_of(given: Encryption | None) -> Encryption | None:
    """What is given, else the keys of HEADGATE_ENCRYPTION_KEYS, else none."""
    if given is not None and not isinstance(given, Encryption):
        raise InvalidInput("encryption", f"must be an Encryption, got {shown(given)}")
    text = os.environ.get(KEYS_VARIABLE, "").strip()
    return Encryption.from_text(text) if given is None and text else given


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, sha256)


def _fits(sealed: bytes, *, what: str = "payload") -> bytes:
    limit = limits.PAYLOAD_MAX_BYTES if what == "payload" else limits.RESULT_MAX_BYTES
    if len(sealed) > limit:
        raise TooLarge(what, size=len(sealed), limit=limit, hint="encryption adds up to 110 bytes; store it elsewhere")
    return sealed


def _key_id(name: object) -> str:
    if not isinstance(name, str) or KEY_ID.fullmatch(name) is None:
        raise InvalidInput("keys", f"has an id that is not 1 to 64 of A-Z a-z 0-9 . _ -, got {shown(name)}")
    return name


def _key(name: str, value: object) -> bytes:
    try:
        raw = base64.b64decode(value, validate=True) if isinstance(value, str) else value
    except (binascii.Error, ValueError):
        raw = b""
    if not isinstance(raw, bytes) or len(raw) != KEY_BYTES:
        raise InvalidInput(
            "keys", f'"{name}" is not a key of {KEY_BYTES} bytes', hint="make one by Encryption.new_key()"
        )
    return raw


def _cipher() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError:
        raise InvalidInput(
            "encryption", "needs the package cryptography", hint='pip install "headgate[encryption]"'
        ) from None
    return AESGCM


def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag

    return InvalidTag
