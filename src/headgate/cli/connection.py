"""One connection to a server for one command."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from headgate.cli.client_warnings import printed_warnings
from headgate.cli.options import Server
from headgate.domain.ids import JobId
from headgate.sdk import Headgate
from headgate.sdk.addresses import Address, addresses_of
from headgate.sdk.rpc import not_connected

Answer = TypeVar("Answer")
_CONNECT_SECONDS: Final = 0.5


def with_client(server: Server, use: Callable[[Headgate], Awaitable[Answer]]) -> Answer:
    """Connect to a server, await `use`, close, and return its answer."""
    check_listening(addresses_of(server.url or None))

    async def connected() -> Answer:
        async with Headgate(server.url or None, token=server.token or None) as hg:
            return await use(hg)

    with printed_warnings():
        return asyncio.run(connected())


def with_id(server: Server, kind: str, given: str, use: Callable[[Headgate, JobId], Awaitable[Answer]]) -> Answer:
    """As `with_client`, for a command about one object: `use` gets its whole id, of which the first part is given."""

    async def act(hg: Headgate) -> Answer:
        return await use(hg, await hg.admin.full_id(kind, given))

    return with_client(server, act)


def check_listening(addresses: Sequence[Address]) -> None:
    """Raise NotConnected at once if all addresses are of this machine, and nothing listens there.

    The client itself would try again for ten seconds, which is right for a server that restarts, and wrong for someone
    who has forgotten to start one.
    """
    if all(address.is_loopback and _refuses(address) for address in addresses):
        raise not_connected(addresses[0], "connection refused")


def _refuses(address: Address) -> bool:
    host, _, port = address.target.rpartition(":")
    with suppress(OSError):
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
        except ConnectionRefusedError:
            return True
    return False
