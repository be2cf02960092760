"""Clients of httpx for plain HTTP on this machine.

Such a client loads all authorities that the machine trusts, also to speak plain HTTP: 35 ms of a processor, a fifth of
the time of the tests of REST. These trust none, and take no proxy from the environment.
"""

from __future__ import annotations

import ssl
from functools import partial
from typing import Any, Final

import httpx

USUAL: Final[dict[str, Any]] = {
    "timeout": 60,
    "trust_env": False,
    "verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
}
"""Arguments of a client, and of a class made from one."""
client: Final = partial(httpx.Client, **USUAL)
async_client: Final = partial(httpx.AsyncClient, **USUAL)
get: Final = partial(httpx.get, **USUAL)
