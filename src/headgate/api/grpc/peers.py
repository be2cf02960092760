"""Bounds the streams that one address has open.

An open stream costs memory, and a loop that opens streams and forgets them looks like a thousand workers. The bound is
per address and generous: behind a proxy all clients have one address. Unix sockets have no address and are not counted:
a process that can reach one has local access anyway.
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
    """The address has the maximum number of streams open; this one was refused."""

    code = "too_many_streams"

    def __init__(self, address: str, limit: int) -> None:
        super().__init__(
            f"{address} has {limit} streams open, the maximum for one address; close some (a worker or a producer "
            "needs one), or raise the server's --streams-per-peer"
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
        """The same stream handler, which refuses a peer with too many streams."""
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
    """The address of a gRPC peer ("ipv4:10.0.0.7:51234") without its port; empty if it has none."""
    kind, _, rest = peer.partition(":")
    return rest.rpartition(":")[0].replace("%5B", "[").replace("%5D", "]") if kind in ("ipv4", "ipv6") else ""
