"""One gRPC polling thread instead of a pool, for processes started by the `headgate` command.

By default, three gRPC threads that wake each other stand between the network and the event loop; the older poller has
one. Each thread adds a delay on an idle system and a context switch under load (ADR 18). gRPC reads the choice once
from the environment, so only the `headgate` command makes it, not the SDK in an application's process.
"""

from __future__ import annotations

import os
from importlib import metadata
from typing import Final

_EXPERIMENTS: Final = "-event_engine_client,-event_engine_listener"
_KNOWN_UNTIL: Final = (1, 85)
"""The newest gRPC measured; a later one may reject these names."""


def poll_with_one_thread() -> None:
    """Select the poller; call it before gRPC is imported. An existing GRPC_EXPERIMENTS wins."""
    major, minor, *_ = metadata.version("grpcio").split(".")
    if (int(major), int(minor)) <= _KNOWN_UNTIL:
        os.environ.setdefault("GRPC_EXPERIMENTS", _EXPERIMENTS)
