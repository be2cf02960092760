"""Reads a small document from an https URL: bounded in size and time, without redirects, proxies and cookies."""

from __future__ import annotations

import asyncio
import http.client
import ssl
import time
from typing import Final
from urllib.parse import urlsplit

SECONDS: Final = 5.0
MAX_BYTES: Final = 262_144


async def fetch(url: str, *, seconds: float = SECONDS, max_bytes: int = MAX_BYTES) -> bytes:
    """The body of a 200 answer. Raises OSError or ValueError with a reason."""
    async with asyncio.timeout(2 * seconds):  # connecting may take as long again, for name resolution
        return await asyncio.to_thread(_fetched, url, seconds, max_bytes)


def _fetched(url: str, seconds: float, max_bytes: int) -> bytes:
    parts, end = urlsplit(url), time.monotonic() + seconds
    host, port = parts.hostname or "", parts.port
    connection = (
        http.client.HTTPConnection(host, port, timeout=seconds)
        if parts.scheme == "http"
        else http.client.HTTPSConnection(host, port, timeout=seconds, context=ssl.create_default_context())
    )
    try:
        connection.request(
            "GET",
            f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}",
            headers={"Accept": "application/json"},
        )
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"the answer has status {answer.status}; redirects are not followed")
        body = bytearray()
        while piece := answer.read1(16_384):
            body += piece
            if len(body) > max_bytes:
                raise ValueError(f"the answer is longer than {max_bytes} bytes")
            if time.monotonic() > end:
                raise ValueError(f"the answer was not complete within {seconds:g} s")
        return bytes(body)
    except http.client.HTTPException as error:
        raise ValueError(f"the answer is not HTTP: {type(error).__name__}") from error
    finally:
        connection.close()
