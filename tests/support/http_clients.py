"""Clients of httpx for plain HTTP on this machine.

Such a client loads all authorities that the machine trusts, also to speak plain HTTP: 35 ms of a processor, a fifth of
the time of the tests of REST. These trust none, and take no proxy from the environment.
"""

from __future__ import annotations

import ssl
from functools import partial
from typing import Any, Final

import httpx

_USUAL: Final[dict[str, Any]] = {
    "timeout": 60,
    "trust_env": False,
    "verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
}
client: Final = partial(httpx.Client, **_USUAL)
async_client: Final = partial(httpx.AsyncClient, **_USUAL)
get: Final = partial(httpx.get, **_USUAL)
