"""Failed logins: logged at a bounded rate, and answered late to an address that keeps failing.

A valid token is never delayed or refused because others fail: behind a proxy all clients have one address. So a guess
costs time to its sender only. Memory does not grow with the number of guesses or addresses: delayed answers are bounded
per address and in total (the others are sent at once), and only the latest addresses are kept.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final

log = logging.getLogger("headgate.logins")
FREE_FAILURES: Final = 5
"""Failures that an address may have, plus one per second, before its answers are delayed: clients that restart with an
old token are not an attack."""
HELD_SECONDS: Final = 1.0
HELD_PER_PEER: Final = 8
HELD_IN_ALL: Final = 128
PEERS: Final = 1_024
LOG_SECONDS: Final = 10.0
"""At most one line per address in this time, with the number of failures since the last one."""
LINES_PER_SECOND: Final = 5.0
"""In total: many addresses at once must not flood the log."""


@dataclass(slots=True)
class _Peer:
    at: float  # of its last failure
    failures: float = 0.0  # decays by one per second
    held: int = 0
    unlogged: int = 0
    logged_at: float = float("-inf")


class FailedLogins:
    """Addresses with recent failed logins."""

    def __init__(
        self,
        *,
        now: Callable[[], float] = time.monotonic,
        hold: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`hold` delays an answer; tests replace it."""
        self._now, self._hold = now, hold
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._held = 0
        self._lines, self._lines_at = LINES_PER_SECOND, now()
        self.count = 0

    def __len__(self) -> int:
        return len(self._peers)

    async def failed(self, address: str, reason: str) -> None:
        """Record a failed login from `address`; returns when the answer may be sent."""
        peer = self._note(_network(address))
        self._log(address, peer, reason)
        if peer.failures <= FREE_FAILURES or peer.held >= HELD_PER_PEER or self._held >= HELD_IN_ALL:
            return
        peer.held += 1
        self._held += 1
        try:
            await self._hold(HELD_SECONDS)
        finally:
            peer.held -= 1
            self._held -= 1

    def _note(self, network: str) -> _Peer:
        now = self._now()
        self.count += 1
        peer = self._peers.get(network)
        if peer is None:
            peer = self._peers[network] = _Peer(now)
            if len(self._peers) > PEERS:
                self._peers.popitem(last=False)
        self._peers.move_to_end(network)
        peer.failures = max(0.0, peer.failures - (now - peer.at)) + 1
        peer.at = now
        return peer

    def _log(self, address: str, peer: _Peer, reason: str) -> None:
        now = self._now()
        peer.unlogged += 1
        self._lines = min(LINES_PER_SECOND, self._lines + (now - self._lines_at) * LINES_PER_SECOND)
        self._lines_at = now
        if now - peer.logged_at < LOG_SECONDS or self._lines < 1:
            return
        self._lines -= 1
        log.warning("login_failed peer=%s reason=%s failures=%d", address or "unix socket", reason, peer.unlogged)
        peer.unlogged, peer.logged_at = 0, now


def _network(address: str) -> str:
    """An IPv6 host can use 2⁶⁴ addresses: they count as one."""
    try:
        known = ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return address
    if not isinstance(known, IPv6Address) or known.ipv4_mapped is not None:
        return address
    return str(IPv6Address(int(known) >> 64 << 64))
