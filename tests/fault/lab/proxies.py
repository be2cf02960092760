"""What the world asks of a fault proxy, and how it gets one."""

from __future__ import annotations

import importlib
from typing import Literal, Protocol


class NotRunHere(Exception):
    """This machine cannot run the scenario; the text says what is missing."""


class Proxy(Protocol):
    """What stands before a server or PostgreSQL: `tests.fault.lab.proxy.FaultProxy`, whose methods these are."""

    @property
    def port(self) -> int: ...
    def worsen(
        self,
        *,
        toward: Literal["server", "client"] | None = None,
        latency: float | None = None,
        jitter: float | None = None,
        bandwidth: float | None = None,
        slice: int | None = None,  # noqa: A002 - the word for it
        cut_after: int | None = None,
    ) -> None: ...
    def hold(self, *, toward: Literal["server", "client"] | None = None) -> None: ...
    def swallow(self, *, toward: Literal["server", "client"] | None = None) -> None: ...
    def refuse(self) -> None: ...
    def reset(self) -> int: ...
    def hang_up(self) -> int: ...
    def cut(
        self,
        pattern: str,
        *,
        toward: Literal["server", "client"] = "server",
        when: Literal["before", "forwarded", "answered"] = "answered",
        statements: bool = False,
        times: int = 1,
    ) -> object: ...
    @property
    def struck(self) -> int: ...
    def heal(self) -> None: ...
    def close(self) -> None: ...


def new_proxy(port: int, *, seed: int = 0) -> Proxy:
    """One before that port. Raises NotRunHere where this tree has none."""
    try:
        module = importlib.import_module("tests.fault.lab.proxy")
    except ModuleNotFoundError as error:
        raise NotRunHere(f"there is no fault proxy in this tree: {error}") from error
    made: Proxy = module.FaultProxy("127.0.0.1", port, seed=seed)
    return made
