"""The public keys of one issuer: read from a file, or fetched from its JWKS URL and kept.

- A set is fetched every REFRESH_SECONDS (a file is read every FILE_SECONDS), and after a failure every REFETCH_SECONDS.
  A token with an unknown key id makes one more fetch, at most one in REFETCH_SECONDS: so new keys are known soon, and
  invented key ids cost the issuer nothing.
- While the issuer cannot be reached, or answers with something else, the keys of the last good answer stay in use for
  STALE_MAX_SECONDS; then its tokens are refused with `credentials_unavailable` until it answers.
- A key that is missing from a new set is no longer trusted: streams whose token it has signed end.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

from headgate.domain.identity import CredentialsUnavailable
from headgate.domain.jwt_issuers import KEY_TYPES, Issuer
from headgate.domain.strict_json import parse_object

log = logging.getLogger("headgate.tokens")
REFRESH_SECONDS: Final = 300.0
REFETCH_SECONDS: Final = 30.0
FILE_SECONDS: Final = 5.0
STALE_MAX_SECONDS: Final = 24 * 3600.0
KEYS_MAX: Final = 100
RSA_MIN_BITS: Final = 2_048
_KINDS: Final[Mapping[str, type[RSAKey] | type[ECKey] | type[OKPKey]]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}


class KeySetError(ValueError):
    """A set of keys cannot be read; the keys in use stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedKey:
    """A key that may have signed a token, and the algorithms it may have used."""

    id: str  # empty: the set has none for it
    key: Key
    algorithms: frozenset[str]
    thumbprint: str


class IssuerKeys:
    """The keys of an issuer as they are known here."""

    def __init__(
        self,
        issuer: Issuer,
        read: Callable[[], Awaitable[bytes]],
        *,
        now: Callable[[], float] = time.monotonic,
        on_change: Callable[[], object] = lambda: None,
    ) -> None:
        """`read` gets the set: from its URL, or from a file."""
        self.issuer, self._read, self._now, self.on_change = issuer, read, now, on_change
        self._keys: tuple[TrustedKey, ...] = ()
        self.thumbprints: frozenset[str] = frozenset()
        self._good_at: float | None = None  # of the last good answer
        self._asked_at = float("-inf")
        self._failed = False
        self._fetching: asyncio.Task[bool] | None = None

    def find(self, kid: str | None, algorithm: str) -> TrustedKey | None:
        """The key with this id that fits the algorithm; without an id, the only one that fits. None: not known.

        Raises CredentialsUnavailable when the keys are too old to be trusted, or were never read.
        """
        if self._good_at is None or self._now() - self._good_at > STALE_MAX_SECONDS:
            raise CredentialsUnavailable(f"the keys of the issuer {self.issuer.issuer} cannot be read; try again later")
        fitting = [one for one in self._keys if algorithm in one.algorithms and (kid is None or one.id == kid)]
        return fitting[0] if len(fitting) == 1 else None

    @property
    def may_refetch(self) -> bool:
        """Whether a fetch for an unknown key is permitted now, or one is under way."""
        fetching = self._fetching is not None and not self._fetching.done()
        return fetching or self._now() - self._asked_at >= REFETCH_SECONDS

    async def refetch(self) -> None:
        """Read the set again, with others that wait for the same; does nothing if that was done just before."""
        if self._fetching is None or self._fetching.done():
            if not self.may_refetch:
                return
            self._fetching = asyncio.get_running_loop().create_task(self.refresh(), name="fetch keys of an issuer")
        await asyncio.shield(self._fetching)

    async def refresh_if_due(self) -> None:
        """Read the set again when it is time to."""
        every = FILE_SECONDS if self.issuer.keys_file else REFETCH_SECONDS if self._failed else REFRESH_SECONDS
        if self._now() - self._asked_at >= every:
            await self.refresh()

    async def refresh(self) -> bool:
        """Read the set; returns whether it could be read. Keeps the keys if not."""
        self._asked_at = self._now()
        try:
            found = parse_key_set(await self._read(), self.issuer)
        except (OSError, ValueError) as error:
            self._failed = True
            log.warning(
                'issuer_keys_unread issuer=%s effect="the previous keys stay in use" error=%s',
                self.issuer.issuer,
                error,
            )
            return False
        self._good_at, self._failed = self._now(), False
        before, self.thumbprints = self.thumbprints, frozenset(one.thumbprint for one in found)
        self._keys = found
        if before != self.thumbprints:
            log.info("issuer_keys_read issuer=%s keys=%d", self.issuer.issuer, len(found))
            if before:
                self.on_change()
        return True


def parse_key_set(raw: bytes, issuer: Issuer) -> tuple[TrustedKey, ...]:
    """The keys of a JWKS, or of a PEM file, that fit the algorithms of the issuer. Raises KeySetError if none does."""
    if raw.lstrip().startswith(b"-----BEGIN"):
        kinds = {KEY_TYPES[name] for name in issuer.algorithms}
        if len(kinds) > 1:
            raise KeySetError("a PEM file has one key: configure algorithms of one type of key")
        candidates: Iterable[tuple[str, object]] = [(kinds.pop(), raw)]
    else:
        try:
            members = parse_object(raw).get("keys")
        except (ValueError, UnicodeDecodeError) as error:
            raise KeySetError(f"the answer is not a set of keys: {error}") from None
        if not isinstance(members, list) or len(members) > KEYS_MAX:
            raise KeySetError(f'the answer has no "keys", or more than {KEYS_MAX}')
        candidates = [(str(one.get("kty")), one) for one in members if isinstance(one, dict)]
    found = [key for kind, one in candidates if (key := _trusted(kind, one, issuer)) is not None]
    if not found:
        raise KeySetError(f"no key fits the algorithms {', '.join(issuer.algorithms)}")
    return tuple(found)


def _trusted(kind: str, value: Any, issuer: Issuer) -> TrustedKey | None:
    """A key, if it is for signatures and fits an algorithm; None for all others: sets have keys for other uses too."""
    importer = _KINDS.get(kind)  # a shared secret ("oct") is no key of ours
    if importer is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about short keys, which are refused below
            key = importer.import_key(value)
            bits = key.public_key.key_size if isinstance(key, RSAKey) else RSA_MIN_BITS
            thumbprint = key.thumbprint()
    except (JoseError, ValueError, KeyError, TypeError, AttributeError):
        return None
    operations, use = key.get("key_ops"), key.get("use")
    if bits < RSA_MIN_BITS or use not in (None, "sig") or (operations is not None and "verify" not in operations):
        return None
    fitting = {name for name in issuer.algorithms if KEY_TYPES[name] == kind and key.alg in (None, name)}
    if isinstance(key, ECKey):
        curves = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
        fitting = {name for name in fitting if curves[name] == key.curve_name}
    if not fitting:
        return None
    name = hashlib.sha256(f"{issuer.issuer} {thumbprint}".encode()).hexdigest()[:16]
    return TrustedKey(id=key.kid or "", key=key, algorithms=frozenset(fitting), thumbprint=name)
