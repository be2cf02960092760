"""One connection to a server for one command."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Final, TypeVar

from headgate.cli.client_warnings import printed_warnings
from headgate.cli.configured import client_configuration
from headgate.cli.options import Server
from headgate.domain.errors import InvalidInput, InvalidSetting
from headgate.domain.ids import JobId
from headgate.domain.redaction import Redaction
from headgate.ops.configuration import Configuration
from headgate.sdk import Encryption, Headgate
from headgate.sdk.addresses import Address, Trust, addresses_of, trust_of
from headgate.sdk.rpc import not_connected

Answer = TypeVar("Answer")
_CONNECT_SECONDS: Final = 0.5


def with_client(server: Server, use: Callable[[Headgate], Awaitable[Answer]], *, warnings: bool = True) -> Answer:
    """Connect to a server, await `use`, close, and return its answer; `warnings`: print those of the client."""
    client = client_of(server)

    async def connected() -> Answer:
        async with client as hg:
            return await use(hg)

    with printed_warnings(shown=warnings):
        return asyncio.run(connected())


def client_of(server: Server) -> Headgate:
    """The client of a command, by its flags, the environment, the profile and the file.

    Raises NotConnected if nothing listens at an address of this machine.
    """
    config = client_configuration(**asdict(server))
    ca, certificate, key = (config.path(name) for name in ("ca", "cert", "key"))
    addresses = configured_addresses(config, trust_of(ca, certificate, key))
    check_listening(addresses)
    return Headgate(
        config.text("url") or None,
        token=config.text("token"),  # "" is none: what the environment has was considered
        ca=ca if any(address.tls for address in addresses) else None,
        certificate=certificate,
        key=key,
        encryption=Encryption.from_text(keys) if (keys := config.text("encryption_keys")) else None,
    )


def configured_addresses(config: Configuration, trust: Trust) -> tuple[Address, ...]:
    """The addresses of the server; an error names the variable, or the line of the file, that has the wrong one."""
    try:
        return addresses_of(config.text("url") or None, trust)
    except InvalidInput as error:
        located = config.located(InvalidInput("--url", error.problem, hint=error.hint))
        raise (located if isinstance(located, InvalidSetting) else error) from None


def redaction_of(server: Server) -> Redaction:
    """The names of keys whose values are masked."""
    return client_configuration(config=server.config).redaction


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
