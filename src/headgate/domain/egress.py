"""Where this server may connect to on behalf of a caller: the rules against server-side request forgery.

A URL is checked when it is stored, and its addresses are checked again at every connection (ops/webhook_http.py):
a name can resolve to another address later. Only public addresses are permitted, besides those that an operator allows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from headgate.domain.errors import InvalidInput, InvalidSetting
from headgate.domain.validation import check_text, shown

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
Ports: TypeAlias = tuple[tuple[int, int], ...]

URL_MAX_CHARS: Final = 2_048
DEFAULT_PORTS: Final[Ports] = ((80, 80), (443, 443), (8080, 8080), (8443, 8443))
DEV_PORTS: Final[Ports] = ((80, 80), (443, 443), (1024, 65_535))
LOOPBACK: Final[tuple[Network, ...]] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
# Written out: `is_global` has changed from one Python release to the next. Both must permit an address.
_REFUSED: Final[tuple[tuple[Network, str], ...]] = tuple(
    (ip_network(network), reason)
    for network, reason in (
        ("0.0.0.0/8", "this network"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared address space"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "cloud metadata"),
        ("169.254.0.0/16", "link-local, cloud metadata"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("::/96", "IPv4-compatible, loopback or unspecified"),
        ("::ffff:0:0/96", "IPv4-mapped"),
        ("::ffff:0:0:0/96", "IPv4-translated"),
        ("64:ff9b::/96", "NAT64"),
        ("64:ff9b:1::/48", "NAT64"),
        ("100::/64", "discard"),
        ("2001::/23", "reserved, Teredo"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4"),
        ("3fff::/20", "documentation"),
        ("5f00::/16", "segment routing"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
    )
)
_HOST: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?")
_UNSAFE: Final = re.compile(r"[\x00-\x20\x7f-\uffff\U00010000-\U0010ffff\\\"<>^`{|}]")
_PORT_RULE: Final = "use numbers and ranges such as 443,8000-8999"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A URL in parts, checked."""

    scheme: str
    host: str  # without brackets
    port: int
    path: str  # with the query

    @property
    def tls(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """For the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressRules:
    """What the operator permits."""

    networks: tuple[Network, ...] = ()  # permitted although they are not public
    plain_http: bool = False
    ports: Ports = DEFAULT_PORTS

    @classmethod
    def of(
        cls, *, networks: Iterable[str] = (), plain_http: bool = False, ports: str = "", dev: bool = False
    ) -> EgressRules:
        """From settings; `dev` permits loopback, plain HTTP and all ports from 1024 on. Raises InvalidSetting."""
        allowed = [_network(text) for text in networks]
        chosen = _ports(ports) if ports else DEV_PORTS if dev else DEFAULT_PORTS
        return cls(networks=(*allowed, *(LOOPBACK if dev else ())), plain_http=plain_http or dev, ports=chosen)

    def target(self, url: object, *, field: str = "url") -> Target:
        """The parts of a URL. Raises InvalidInput: what the text says about the address itself is for `refusal`."""
        text = check_text(url, field=field, high=URL_MAX_CHARS)
        if unsafe := _UNSAFE.search(text):
            raise InvalidInput(
                field, f"has U+{ord(unsafe[0]):04X} at position {unsafe.start()}", hint="encode it with %"
            )
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise InvalidInput(field, f"is not a URL ({error}), got {shown(text)}") from None
        schemes = ("https", "http") if self.plain_http else ("https",)
        if parts.scheme not in schemes:
            hint = "" if self.plain_http else "plain HTTP needs the setting --webhook-http of the server"
            raise InvalidInput(field, f"must begin with {' or '.join(f'{one}://' for one in schemes)}", hint=hint)
        if "@" in parts.netloc:
            raise InvalidInput(field, "must not have a user name or password", hint="receivers check the signature")
        if parts.fragment:
            raise InvalidInput(field, "must not have a fragment (#)")
        port = port if port is not None else 443 if parts.scheme == "https" else 80
        if not any(low <= port <= high for low, high in self.ports):
            raise InvalidInput(
                field, f"port {port} is not permitted", hint=f"permitted: {ports_text(self.ports)} (--webhook-ports)"
            )
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return Target(scheme=parts.scheme, host=_host(parts.hostname or "", field=field), port=port, path=path)

    def refusal(self, address: Address) -> str:
        """Why this server must not connect to an address; empty: it may."""
        if any(address.version == one.version and address in one for one in self.networks):
            return ""
        for network, reason in _REFUSED:
            if address.version == network.version and address in network:
                return f"{address} is not a public address ({reason})"
        return "" if address.is_global and not address.is_multicast else f"{address} is not a public address"

    def permitted(self, host: str, addresses: Iterable[str]) -> list[Address]:
        """The addresses of a host that may be connected to. Raises InvalidInput if there is none."""
        found = [ip_address(text.partition("%")[0]) for text in addresses]
        fit = [address for address in found if not self.refusal(address)]
        if not fit:
            reason = self.refusal(found[0]) if found else "it has no address"
            raise InvalidInput(
                "url", f"{host}: {reason}", hint="the operator of the server can permit networks with --webhook-allow"
            )
        return fit


def literal_address(host: str) -> Address | None:
    """The address that a host is written as; None: it is a name, and must be resolved."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def ports_text(ports: Ports) -> str:
    """For people: 443, 8000-8999."""
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in ports)


def _host(host: str, *, field: str) -> str:
    if not host:
        raise InvalidInput(field, "has no host")
    if literal_address(host) is not None:
        return host
    # A name whose last part is a number is an IPv4 address in another form (2130706433, 0x7f.1, 0177.0.0.1) to some
    # resolvers and a name to others.
    last = host.rstrip(".").rpartition(".")[2]
    if not _HOST.fullmatch(host) or len(host) > 253 or re.fullmatch(r"[0-9]+|0[xX][0-9a-fA-F]*", last):
        raise InvalidInput(field, f"{shown(host)} is neither a host name nor an IP address in its usual form")
    return host


def _network(text: str) -> Network:
    try:
        return ip_network(text.strip())
    except ValueError:
        raise InvalidSetting(
            "--webhook-allow", f"{shown(text)} is not a network", hint="use a form such as 10.1.0.0/16 or fd00::/8"
        ) from None


def _ports(text: str) -> Ports:
    found: list[tuple[int, int]] = []
    for part in text.split(","):
        fits = re.fullmatch(r"\s*([0-9]{1,5})(?:-([0-9]{1,5}))?\s*", part)
        low, high = (int(fits[1]), int(fits[2] or fits[1])) if fits else (0, 0)
        if not 1 <= low <= high <= 65_535:
            raise InvalidSetting("--webhook-ports", f"{shown(part)} is not a port", hint=_PORT_RULE)
        found.append((low, high))
    return tuple(found)
