"""Revocation: everything that a credential has open ends within five seconds of its revocation.

What ends
- Worker sessions, streams of jobs and waiting claims: they end when the credential is revoked, has
  expired, or has other rights now. A worker reconnects with its current rights.
- Streams of producers and calls that wait for a result (`OpenCalls`): they check their rights again, and end if
  those no longer suffice. Each frame of a producer is checked anyway.
- Bulk operations: they are cancelled, and the audit says why. One that the credential still permits continues.

Everything that a credential has stored stays: jobs, schedules, limits, pauses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from headgate.control.auth import TokenFile, TokenValidator, same_rights
from headgate.control.ports import RevokedBulk
from headgate.domain.bulk import StartedBulk
from headgate.domain.errors import HeadgateError
from headgate.domain.identity import CredentialsUnavailable, Identity, Scope, TokenRevoked
from headgate.domain.topic_sets import TopicSet

log = logging.getLogger("headgate.tokens")
LOOK_SECONDS: Final = 1.0
"""How often the token file is read. Its removal counts at the second read; everything ends within five seconds."""


class Holder(Protocol):
    """Something open that ends with its credential."""

    @property
    def identity(self) -> Identity: ...
    def end(self, reason: HeadgateError) -> None: ...


@dataclass(slots=True, eq=False)
class OpenCall:
    """A call that checks its rights again when `changed` is set."""

    identity: Identity
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def recheck(self, validator: TokenValidator, *any_of: Scope) -> None:
        """Take the rights that the token has now; raises if it has none of the scopes, or is not valid any more."""
        self.identity = validator.recheck(self.identity)
        self.identity.require(*any_of)
        self.changed.clear()


class OpenCalls:
    """The long-lived calls of this instance, except those that receive jobs."""

    def __init__(self) -> None:
        self._open: set[OpenCall] = set()

    @contextmanager
    def watched(self, identity: Identity) -> Iterator[OpenCall]:
        """Register a call while it is open."""
        call = OpenCall(identity)
        self._open.add(call)
        try:
            yield call
        finally:
            self._open.discard(call)

    def __iter__(self) -> Iterator[OpenCall]:
        return iter(tuple(self._open))

    def __len__(self) -> int:
        return len(self._open)


class Revocation:
    """Reads the token file again, and ends what is open with a credential that has changed or expired."""

    def __init__(
        self,
        validator: TokenValidator,
        *,
        holders: Callable[[], Iterable[Holder]],
        calls: OpenCalls,
        file: TokenFile | None = None,
        exposed: Callable[[], str] = lambda: "",
    ) -> None:
        """`file` is read again when it has changed; `exposed` then describes a problem with its permissions."""
        self._validator, self._holders, self._calls, self._file = validator, holders, calls, file
        self._exposed = exposed
        self._gone = self._stopped = False

    async def run(self) -> None:
        """Check every second until `stop`. Does not use the database: one that hangs must not delay this."""
        while not self._stopped:
            self.run_once()
            await asyncio.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """Check no more."""
        self._stopped = True

    def run_once(self) -> int:
        """One check; returns how many sessions and calls it ended or woke."""
        self._read()
        return self.end_changed()

    def end_changed(self) -> int:
        """End what is open with a credential that has changed or expired; returns how many sessions and calls."""
        ended = 0
        for holder in self._holders():
            try:
                if not same_rights(self._validator.recheck(holder.identity), holder.identity):
                    raise TokenRevoked(f"the token of {holder.identity.subject} has changed")
            except (TokenRevoked, CredentialsUnavailable) as reason:
                holder.end(reason)
                ended += 1
        for call in self._calls:
            if call.changed.is_set():
                continue
            try:
                if same_rights(self._validator.recheck(call.identity), call.identity):
                    continue
            except (TokenRevoked, CredentialsUnavailable):
                pass
            call.changed.set()
            ended += 1
        return ended

    def _read(self) -> None:
        file = self._file
        if file is None:
            return
        try:
            if file.refresh() and not file.gone and (problem := self._exposed()):
                # Read anyway: who has just revoked a token must not find out later that it was not.
                log.error('tokens_exposed effect="the next start will refuse the file" reason=%s', problem)
        except (OSError, HeadgateError) as error:
            log.warning('tokens_unreadable effect="the previous tokens stay valid" error=%s', error)
        if file.gone != self._gone:
            self._gone = file.gone
            if self._gone:
                log.critical('tokens_gone effect="all tokens are revoked until the file is back"')
            else:
                log.warning('tokens_back effect="the tokens in the file are valid"')


class RevokedOperations:
    """Cancels bulk operations whose credential no longer permits them. Asks the database only after a change.

    `Bulk.start` checks an operation that is being started meanwhile.
    """

    def __init__(self, validator: TokenValidator, operations: RevokedBulk) -> None:
        self._validator, self._operations = validator, operations
        self._seen: tuple[int, int] | None = None  # the state of the tokens at the last check
        self._stopped = False

    async def run(self) -> None:
        """Check every second until `stop`."""
        while not self._stopped:
            await self.run_once()
            await asyncio.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """Check no more."""
        self._stopped = True

    async def run_once(self) -> None:
        """One check."""
        state = self._validator.state()
        if state == self._seen:
            return
        try:
            for one in await self._operations.started():
                await self._validator.learn(one.credential)
                if reason := self._refusal(one):
                    await self._operations.end_revoked(one, reason=reason)
                    log.warning("bulk_revoked operation=%s who=%s reason=%s", one.id, one.who, reason)
        except HeadgateError as error:
            log.warning('revocation_failed effect="retried in a second" error=%s', error)
        else:
            self._seen = state

    def _refusal(self, one: StartedBulk) -> str:
        if not one.credential:
            return ""
        try:
            known = self._validator.recheck(
                Identity(tenant="", subject=one.who, scopes=frozenset(), credential=one.credential)
            )
            check_operates(known, tenant=one.tenant, topics=one.topics)
        except CredentialsUnavailable:
            raise  # nothing is known: look again later
        except HeadgateError as error:
            return str(error)
        return ""


def check_operates(known: Identity, *, tenant: str, topics: TopicSet | None) -> None:
    """Raise PermissionDenied or TokenRevoked unless these rights permit a bulk operation of a tenant and its topics."""
    known.require(Scope.OPERATE)
    if known.tenant != tenant:
        raise TokenRevoked(f"the token of {known.subject} belongs to another tenant now")
    if known.topics is not None and not known.topics.covers(topics):
        raise TokenRevoked(f"the token of {known.subject} permits fewer topics now")
