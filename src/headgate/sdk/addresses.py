"""Server addresses: parsing HEADGATE_URL, rotating through several addresses, waiting between attempts."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from headgate.domain.errors import InvalidInput
from headgate.domain.validation import shown

DEFAULT_PORT: Final = 7070
DEFAULT_ADDRESS: Final = f"127.0.0.1:{DEFAULT_PORT}"
_PLAIN: Final = ("http", "grpc", "headgate")
_TLS: Final = ("https", "grpcs", "headgates")
_FORM: Final = "write host:port, or https://host:port for TLS; several with commas between them"


@dataclass(frozen=True, slots=True)
class Trust:
    """Trusted authorities and the client's certificate, as PEM. None means the public authorities."""

    ca: bytes | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Address:
    """One server: what gRPC dials, and whether by TLS."""

    target: str
    tls: bool = False
    trust: Trust = field(default=Trust(), repr=False)

    def __str__(self) -> str:
        return f"https://{self.target}" if self.tls else self.target

    @property
    def is_loopback(self) -> bool:
        """Whether it is an address of this machine."""
        host = self.target.rpartition(":")[0].strip("[]")
        return host == "localhost" or host == "::1" or host.startswith("127.")


def trust_of(
    ca: str | Path | None = None, certificate: str | Path | None = None, key: str | Path | None = None
) -> Trust:
    """Read the files that are named here, or else by HEADGATE_CA, HEADGATE_CERT and HEADGATE_KEY."""
    found = Trust(
        ca=_pem(ca, "ca", "HEADGATE_CA"),
        certificate=_pem(certificate, "certificate", "HEADGATE_CERT"),
        key=_pem(key, "key", "HEADGATE_KEY"),
    )
    if (found.certificate is None) != (found.key is None):
        raise InvalidInput("certificate", "and key are needed together", hint="give both, or neither")
    return found


def _pem(path: str | Path | None, name: str, variable: str) -> bytes | None:
    path = path or os.environ.get(variable)
    if not path:
        return None
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(name, f"{path} cannot be read ({error.strerror})", hint=f"see {variable}") from None
    if b"-----BEGIN " not in text:
        raise InvalidInput(name, f"{path} is not in PEM format", hint="it begins with -----BEGIN")
    return text


def addresses_of(url: str | Sequence[str] | None, trust: Trust = Trust()) -> tuple[Address, ...]:  # noqa: B008 -- frozen
    """Read one or several addresses; None means the environment's HEADGATE_URL, or else this machine."""
    if url is None:
        url = os.environ.get("HEADGATE_URL") or DEFAULT_ADDRESS
    parts = url.split(",") if isinstance(url, str) else list(url)
    found = tuple(dict.fromkeys(_parse(part.strip(), trust) for part in parts if part.strip()))
    if not found:
        raise InvalidInput("url", "names no server", hint=_FORM)
    return found


def _parse(text: str, trust: Trust) -> Address:
    try:
        split = urlsplit(text if "://" in text else f"//{text}")
        host, port = split.hostname, split.port
    except ValueError:
        raise InvalidInput("url", f"is not an address, got {shown(text)}", hint=_FORM) from None
    known = not split.scheme or split.scheme in (*_PLAIN, *_TLS)
    if not host or not known or split.path.strip("/") or split.query or split.username:
        raise InvalidInput("url", f"is not an address, got {shown(text)}", hint=_FORM)
    bracketed = f"[{host}]" if ":" in host else host
    tls = split.scheme in _TLS
    return Address(f"{bracketed}:{port or DEFAULT_PORT}", tls=tls, trust=trust if tls else Trust())


CONNECT_SECONDS: Final = 3.0
"""For one attempt to connect: a peer that takes connections and does not answer must not use up the time in which a
worker has to be back."""
CONNECT_LONGEST_SECONDS: Final = 20.0
"""After many attempts: over a slow link, or to a server that is overloaded, three seconds may never suffice."""
SHORT_ROUNDS: Final = 4
"""Rounds with the short time: they take about as long as servers wait for a worker that lost its connection."""


class Rotation:
    """Which address to try next, how long to wait first, and how long the attempt may take.

    The start is random, so that many processes given the same list spread over it. A round over all addresses is made
    without waiting; after each failed round the wait doubles, jittered: after a server restart all its workers
    would otherwise come back in step.
    """

    def __init__(
        self, addresses: tuple[Address, ...], *, first_wait: float = 0.1, longest: float = 5.0, chance: random.Random
    ) -> None:
        self._addresses, self._chance = addresses, chance
        self._at = chance.randrange(len(addresses))
        self.current = addresses[self._at]
        """The address in use, or to be tried next."""
        self._first, self._longest = first_wait, longest
        self._failures = 0
        self._answered: set[Address] = set()

    @property
    def single(self) -> bool:
        """True if there is only one address."""
        return len(self._addresses) == 1

    def succeeded(self) -> None:
        """The current address answered."""
        self._failures = 0
        self._answered.add(self.current)

    def has_answered(self, address: Address) -> bool:
        """Whether a Headgate server has answered there before: then the address and its form are right."""
        return address in self._answered

    @property
    def connect_seconds(self) -> float:
        """How long an attempt to connect may take: longer after some failed rounds."""
        rounds = self._failures // len(self._addresses)
        doubled: float = CONNECT_SECONDS * 2 ** min(16, max(0, rounds + 1 - SHORT_ROUNDS))
        return min(CONNECT_LONGEST_SECONDS, doubled)

    def move_on(self) -> float:
        """Go to the next address; returns how many seconds to wait before trying it."""
        self._at = (self._at + 1) % len(self._addresses)
        self.current = self._addresses[self._at]
        self._failures += 1
        rounds, rest = divmod(self._failures, len(self._addresses))
        if rest:
            return 0.0
        ceiling: float = min(self._longest, self._first * 2 ** min(rounds - 1, 16))
        return ceiling * (0.5 + self._chance.random() / 2)
