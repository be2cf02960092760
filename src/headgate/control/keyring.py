"""API keys as callers present them: checked in memory, read from the database when they are new or have changed.

- A key that this instance does not know is looked up once. Lookups that come together are one query, and one query runs
  at a time, so guesses cost the database little however many there are. Ids that do not exist are remembered briefly.
- Known keys are read again when the version of the keys has changed, which is asked every two seconds. So a revoked or
  narrowed key ends what it has open within five seconds on every instance, without any notification.
- While the database is away, known keys stay valid as they were for UNCHECKED_MAX_SECONDS; then they are refused with
  `credentials_unavailable` until it is back. Unknown keys are refused so at once. Expiry works without the database.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from headgate.domain.api_keys import StoredKey, credential_of, digest_of, id_of_credential, id_of_key
from headgate.domain.errors import HeadgateError
from headgate.domain.identity import CredentialsUnavailable, Identity, LookupRequired, TokenRevoked, Unauthenticated

log = logging.getLogger("headgate.keys")
LOOK_SECONDS: Final = 2.0
USED_SECONDS: Final = 60.0
UNCHECKED_MAX_SECONDS: Final = 900.0
LOOKUP_SECONDS: Final = 5.0
LOOKUP_IDS: Final = 1_000
"""Ids in one query; more wait for the next one."""
UNKNOWN_SECONDS: Final = 2.0
UNKNOWN_IDS: Final = 4_096
KEYS_KEPT: Final = 20_000
"""Beyond that, keys that were not used since the last minute are forgotten, and looked up again when they come back."""


class KeyRows(Protocol):
    """The keys in the database."""

    async def version(self) -> int: ...
    async def load(self, ids: Sequence[str], /) -> list[StoredKey]: ...
    async def used(self, ids: Sequence[str], /) -> None: ...


class _Known:
    """A key that was looked up, its secrets, and when it expires by the monotonic clock."""

    __slots__ = ("expires", "row", "secrets", "used")

    def __init__(self, row: StoredKey, now: float) -> None:
        self.row, self.used = row, False
        self.expires = None if row.expires_in is None else now + row.expires_in
        self.secrets = [_Secret(self, row.digest, None)]
        if row.old_digest is not None and row.old_for is not None:
            self.secrets.append(_Secret(self, row.old_digest, now + row.old_for))


class _Secret:
    """A secret of a key: the current one, or the one before the last rotation, which ends."""

    __slots__ = ("digest", "ends", "identity", "key")

    def __init__(self, key: _Known, digest: bytes, ends: float | None) -> None:
        self.key, self.digest, self.ends = key, digest, ends
        row = key.row
        self.identity = Identity(
            tenant=row.tenant,
            subject=row.name,
            scopes=row.scopes,
            topics=row.topics,
            credential=credential_of(row.id, digest),
            rates=row.rates,
        )

    def refusal(self, now: float) -> str:
        """Why it is not valid now; empty if it is."""
        key = self.key
        if key.row.revoked:
            return f"key hg_{key.row.id} is revoked"
        if key.expires is not None and key.expires <= now:
            return f"key hg_{key.row.id} has expired"
        return f"key hg_{key.row.id} was rotated" if self.ends is not None and self.ends <= now else ""


class KeyRing:
    """The API keys that this instance has met. Fits `TokenValidator`."""

    def __init__(
        self,
        rows: KeyRows,
        *,
        now: Callable[[], float] = time.monotonic,
        on_change: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_change` is called after keys were read again: what is open with them may have to end."""
        self._rows, self._now, self.on_change = rows, now, on_change
        self._known: dict[str, _Known] = {}  # by id
        self._secrets: dict[str, _Secret] = {}  # by credential
        # Keys that were accepted, so that each is hashed once. Python compares the text only if a keyed 64-bit hash of
        # it is equal, so the time of a lookup reveals nothing about a key.
        self._accepted: dict[str, _Secret] = {}
        self._unknown: OrderedDict[str, float] = OrderedDict()  # ids that do not exist, until when
        self._wanted: dict[str, asyncio.Future[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._version = -1
        self._changes = 0
        self._checked = now()
        self._noted = now()
        self._away = self._stopped = False
        self._woken = asyncio.Event()

    # ------------------------------------------------------------------ TokenValidator

    def identify(self, token: str) -> Identity:
        """The identity of a key. Raises Unauthenticated, LookupRequired, CredentialsUnavailable."""
        secret = self._accepted.get(token)
        if secret is None:
            secret = self._find(token)
        now = self._now()
        if reason := secret.refusal(now):
            raise Unauthenticated(reason)
        self._check_fresh(now)
        secret.key.used = True
        self._accepted[token] = secret
        return secret.identity

    def recheck(self, identity: Identity, *, uses: bool = True) -> Identity:
        """The identity with its current rights. Raises TokenRevoked, CredentialsUnavailable."""
        secret = self._secrets.get(identity.credential)
        if secret is None:
            raise TokenRevoked(f"the key of {identity.subject} is not valid any more")
        now = self._now()
        if reason := secret.refusal(now):
            raise TokenRevoked(reason)
        self._check_fresh(now)
        if uses:
            secret.key.used = True
        return secret.identity

    def state(self) -> tuple[int, int]:
        """Changes when keys were read again, or have expired."""
        now = self._now()
        return self._changes, sum(1 for one in self._secrets.values() if one.refusal(now))

    async def lookup(self, token: str) -> Identity:
        """The identity of a key that may have to be read from the database first."""
        key_id = id_of_key(token)
        if key_id is None:
            raise Unauthenticated("malformed key")
        await self._looked_up(key_id)
        try:
            return self.identify(token)
        except LookupRequired:  # removed, or forgotten, while this waited for its turn
            raise Unauthenticated(f"no key hg_{key_id}") from None

    async def learn(self, credential: str) -> None:
        """Make the key of a credential known, so that `recheck` can judge it. Raises CredentialsUnavailable."""
        key_id = id_of_credential(credential)
        if key_id not in self._known:
            await self._looked_up(key_id)

    # ------------------------------------------------------------------ the cache

    def _find(self, token: str) -> _Secret:
        key_id = id_of_key(token)
        if key_id is None:
            raise Unauthenticated("malformed key")
        known = self._known.get(key_id)
        if known is None:
            if self._unknown.get(key_id, 0.0) > self._now():
                raise Unauthenticated(f"no key hg_{key_id}")
            raise LookupRequired
        digest = digest_of(token)
        for secret in known.secrets:
            if hmac.compare_digest(digest, secret.digest):
                return secret
        raise Unauthenticated(f"wrong secret for key hg_{key_id}")

    def _check_fresh(self, now: float) -> None:
        if now - self._checked > UNCHECKED_MAX_SECONDS:
            raise CredentialsUnavailable(
                f"keys could not be checked for {int(now - self._checked)} s, since the database cannot be reached; "
                "try again later"
            )

    async def _looked_up(self, key_id: str) -> None:
        """Return when this id is known, or known not to exist. Raises CredentialsUnavailable."""
        loop = asyncio.get_running_loop()
        wait = self._wanted.get(key_id)
        if wait is None:
            wait = self._wanted[key_id] = loop.create_future()
        if self._looking is None or self._looking.done():
            self._looking = loop.create_task(self._look_up(), name="look up keys")
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                await asyncio.shield(wait)  # others may wait for the same
        except TimeoutError:
            raise CredentialsUnavailable("the key could not be looked up in time; try again") from None

    async def _look_up(self) -> None:
        while self._wanted:
            batch = dict(list(self._wanted.items())[:LOOKUP_IDS])
            try:
                if self._version < 0:
                    self._version = await self._rows.version()
                found = await self._rows.load(list(batch))
            except HeadgateError as error:
                failed = CredentialsUnavailable(f"the key cannot be looked up: {error}")
                for key_id, wait in batch.items():
                    del self._wanted[key_id]
                    wait.set_exception(failed)
                    wait.exception()  # seen here: its waiter may have left
                continue
            now = self._now()
            self._take(found, now)
            for key_id, wait in batch.items():
                del self._wanted[key_id]
                if key_id not in self._known:
                    self._unknown[key_id] = now + UNKNOWN_SECONDS
                    self._unknown.move_to_end(key_id)
                wait.set_result(None)
            while len(self._unknown) > UNKNOWN_IDS:
                self._unknown.popitem(last=False)

    def _take(self, rows: Iterable[StoredKey], now: float) -> None:
        for row in rows:
            was_used = self._forget(row.id)
            known = self._known[row.id] = _Known(row, now)
            known.used = was_used
            self._secrets.update((one.identity.credential, one) for one in known.secrets)
            self._unknown.pop(row.id, None)

    def _forget(self, key_id: str) -> bool:
        """Forget a key and its secrets; returns whether it was used since that was noted."""
        known = self._known.pop(key_id, None)
        if known is None:
            return False
        for secret in known.secrets:
            self._secrets.pop(secret.identity.credential, None)
        return known.used

    # ------------------------------------------------------------------ the service

    async def run(self) -> None:
        """Look for changes every two seconds until `stop`; asks nothing while no key is known."""
        while not self._stopped:
            await self.run_once()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._woken.wait()
            self._woken.clear()

    def wake(self) -> None:
        """Look for changes at once: a key was changed through this instance."""
        self._woken.set()

    def stop(self) -> None:
        """Look no more."""
        self._stopped = True
        self._woken.set()

    async def run_once(self) -> bool:
        """Read the known keys again if keys have changed; returns whether they had."""
        if not self._known:
            self._checked = self._now()
            return False
        asked = self._now()
        try:
            version = await self._rows.version()
            changed = version != self._version
            if changed:
                await self._read_again()
                self._version = version
            self._checked = asked
            await self._note_used(asked)
        except HeadgateError as error:
            if not self._away:
                self._away = True
                log.warning(
                    'keys_unchecked effect="known keys stay valid for some minutes" seconds=%d error=%s',
                    UNCHECKED_MAX_SECONDS,
                    error,
                )
            return False
        if self._away:
            self._away = False
            log.info("keys_checked_again")
        return changed

    async def _read_again(self) -> None:
        asked = list(self._known)  # keys that are looked up meanwhile are read after the change as well
        found = await self._rows.load(asked)
        self._accepted.clear()
        for key_id in set(asked).difference(row.id for row in found):
            self._forget(key_id)
        self._take(found, self._now())
        self._changes += 1
        self.on_change()

    async def _note_used(self, now: float) -> None:
        if now - self._noted < USED_SECONDS:
            return
        self._noted = now
        used = [key_id for key_id, known in self._known.items() if known.used]
        if len(self._known) > KEYS_KEPT:
            for key_id in set(self._known).difference(used):
                self._forget(key_id)
            self._accepted.clear()
        for known in self._known.values():
            known.used = False
        if used:
            await self._rows.used(used)
