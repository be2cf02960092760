"""How many streams one address has open here, and no more than that.

A stream costs memory for as long as it is open, and a loop that opens streams and forgets them looks like a thousand
workers. The bound is per address and generous: behind a proxy everybody has the same one. Sockets of the file system
have no address, and whoever reaches one may do worse; they are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headgate.api.grpc.errors import end_with
from headgate.api.grpc.methods import Context
from headgate.domain.errors import HeadgateError

First = TypeVar("First")


class TooManyStreams(HeadgateError):
    """The peer has as many streams open as one address may have; nothing was done for this one."""

    code = "too_many_streams"

    def __init__(self, address: str, limit: int) -> None:
        super().__init__(
            f"{address} has {limit} streams open here, and one address may have no more; close some (a worker or a "
            "producer needs one), or have the server allow more: --streams-per-peer"
        )
        self.address, self.limit = address, limit


class PeerStreams:
    """Counts the open streams by address; `limit` 0 counts nothing."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    def bounded(
        self, serve: Callable[[First, Context], Awaitable[None]]
    ) -> Callable[[First, Context], Awaitable[None]]:
        """The same stream, refused where its peer has too many."""
        if not self._limit:
            return serve

        async def counted(first: First, context: Context) -> None:
            address = address_of(context.peer())
            if not address:
                await serve(first, context)
                return
            if self._open[address] >= self._limit:
                await end_with(context, TooManyStreams(address, self._limit))
            self._open[address] += 1
            try:
                await serve(first, context)
            finally:
                self._open[address] -= 1
                if not self._open[address]:
                    del self._open[address]

        return counted


def address_of(peer: str) -> str:
    """The address of what gRPC calls a peer ("ipv4:10.0.0.7:51234"), without its port; empty if it has none."""
    kind, _, rest = peer.partition(":")
    return rest.rpartition(":")[0].replace("%5B", "[").replace("%5D", "]") if kind in ("ipv4", "ipv6") else ""
