"""Where a request of a browser comes from: pages of other sites, and names that only seem to be this machine.

In dev mode there is no login, so every request that reaches the port is an administrator's. Two kinds must not:

1. One to a name of another site that resolves to 127.0.0.1 (DNS rebinding): for the browser it is that very site, and
   its pages may read the answers. The name in `Host` gives it away.
2. A change that a page of another site sends. Browsers say so in `Sec-Fetch-Site` and `Origin`; programs send neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from headgate.domain.errors import HeadgateError


class ForgedRequest(HeadgateError):
    """A request that a page of another site has sent, or a change without what only pages of the dashboard have."""

    code = "permission_denied"


def check_local_host(host: str) -> None:
    """Raise ForgedRequest for a name that can be of another site: `localhost` and addresses cannot."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name == "localhost" or name.endswith(".localhost"):
            return
        ip_address(name)
    except ValueError:
        raise ForgedRequest(
            "dev mode has no login and answers to localhost and addresses only; open http://127.0.0.1 instead"
        ) from None


def check_no_other_site(headers: Mapping[str, str]) -> None:
    """Raise ForgedRequest if a browser says that a page of another origin has sent the request."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    foreign = site is not None and site not in ("same-origin", "none")
    if foreign or (origin is not None and netloc_of(origin) != headers.get("host", "").lower()):
        raise ForgedRequest(
            "dev mode has no login and takes no changes from pages of other sites; send the request from a program, or"
            " start a server with tokens"
        )


def netloc_of(origin: str) -> str:
    """Name and port of an origin; empty for `null`."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # such as http://[
        raise ForgedRequest("the header Origin is not a URL; leave it out") from None
