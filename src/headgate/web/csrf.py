"""Forged requests: two independent checks of every POST.

1. The browser says where the request comes from (`Sec-Fetch-Site`, `Origin`): it must be this very site. A request
   with neither header does not come from a browser of this century, and is refused.
2. The form carries a token derived from a cookie that no other site can read.

In dev mode there is no login, so the name in `Host` is checked as well (api/http/origins.py).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Final

from headgate.api.http.origins import ForgedRequest, netloc_of

FIELD: Final = "csrf"
HEADER: Final = "x-csrf-token"


def new_visitor() -> str:
    """The value of a cookie from which tokens are derived."""
    return secrets.token_urlsafe(24)


def token_of(cookie: str) -> str:
    """The token for forms of the browser that has this cookie."""
    return hmac.new(cookie.encode(), b"headgate form", hashlib.sha256).hexdigest()[:40]


def check_token(cookie: str, given: str) -> None:
    """Raise ForgedRequest unless the form has the token of this browser."""
    if not cookie or not hmac.compare_digest(token_of(cookie).encode(), given.encode()):
        raise ForgedRequest("the form has no valid token; reload the page and send it again")


def check_origin(headers: Mapping[str, str], *, secure: bool = False) -> None:
    """Raise ForgedRequest unless the browser says that the request comes from a page of this very site.

    `secure`: over TLS of this port, so that a page of plain HTTP, which others on the way can write, is another site.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and origin is None:
        raise ForgedRequest("the request has neither Sec-Fetch-Site nor Origin; send it from the dashboard")
    if site is not None and site != "same-origin":
        raise ForgedRequest("the request comes from another site; send it from the dashboard")
    if origin is None:
        return
    if netloc_of(origin) != headers.get("host", "").lower() or (secure and not origin.lower().startswith("https:")):
        raise ForgedRequest("the request comes from another origin; send it from the dashboard")
