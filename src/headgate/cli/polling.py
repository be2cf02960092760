"""One polling thread for gRPC instead of a pool of them, in the processes that are ours.

Between the network and an event loop stand, by default, three of gRPC's threads that wake each other. Its older way has
one. On an idle system each of them is a delay, under load a switch (ADR 18). It is asked for by the environment, which
gRPC reads once; so it is for the `headgate` command alone to say, and not for the SDK in somebody else's process.
"""

from __future__ import annotations

import os
from importlib import metadata
from typing import Final

_EXPERIMENTS: Final = "-event_engine_client,-event_engine_listener"
_KNOWN_UNTIL: Final = (1, 85)
"""The newest gRPC that was measured: a later one may not know these names any more, and would complain."""


def poll_with_one_thread() -> None:
    """Before gRPC is imported. Whoever has set GRPC_EXPERIMENTS has said what they want."""
    major, minor, *_ = metadata.version("grpcio").split(".")
    if (int(major), int(minor)) <= _KNOWN_UNTIL:
        os.environ.setdefault("GRPC_EXPERIMENTS", _EXPERIMENTS)
