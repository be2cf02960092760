"""One connection to a server for one command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headgate.sdk import Headgate

Answer = TypeVar("Answer")


def with_client(url: str, use: Callable[[Headgate], Awaitable[Answer]]) -> Answer:
    """Connect to the server at `url` (empty: the default one), await `use`, close, and return its answer."""

    async def connected() -> Answer:
        async with Headgate(url or None) as hg:
            return await use(hg)

    return asyncio.run(connected())
