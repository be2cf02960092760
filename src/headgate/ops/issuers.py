"""The issuers of a configuration file, and how their keys are read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

from headgate.domain.errors import InvalidSetting
from headgate.domain.jwt_issuers import Issuer, parse_issuers
from headgate.ops.fetch import MAX_BYTES, fetch

Reader: TypeAlias = Callable[[], Awaitable[bytes]]


def read_issuers(path: Path | None) -> list[tuple[Issuer, Reader]]:
    """The issuers of a file, each with a function that reads its keys; none without a file. Raises InvalidSetting."""
    if path is None:
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidSetting("--jwt-issuers", f"{path} is not UTF-8") from None
    except OSError as error:
        raise InvalidSetting("--jwt-issuers", f"{path} cannot be read ({error.strerror})") from error
    return [(one, _reader(one)) for one in parse_issuers(text, source=str(path))]


def _reader(issuer: Issuer) -> Reader:
    if issuer.keys_file is None:
        return partial(fetch, issuer.jwks_url)
    return partial(asyncio.to_thread, _read_file, issuer.keys_file)


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise ValueError(f"{path} is longer than {MAX_BYTES} bytes")
    return raw
