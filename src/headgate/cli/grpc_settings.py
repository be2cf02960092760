"""How gRPC polls and logs in processes started by the `headgate` command: one polling thread, no lines of its own.

By default, three gRPC threads that wake each other stand between the network and the event loop; the older poller has
one. Each thread adds a delay on an idle system and a context switch under load (ADR 18). gRPC reads the choice once
from the environment, so only the `headgate` command makes it, not the SDK in an application's process. Its own log
lines (`ssl_transport_security.cc … Handshake failed`) say nothing that our errors do not, in a format of their own.
"""

from __future__ import annotations

import os
from importlib import metadata
from typing import Final

EXPERIMENTS: Final = "-event_engine_client,-event_engine_listener"
_KNOWN_UNTIL: Final = (1, 85)
"""The newest gRPC measured; a later one may reject these names."""


def configure_grpc() -> None:
    """Select the poller and silence gRPC's log; call it before gRPC is imported. Existing variables win."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    major, minor, *_ = metadata.version("grpcio").split(".")
    if (int(major), int(minor)) <= _KNOWN_UNTIL:
        os.environ.setdefault("GRPC_EXPERIMENTS", EXPERIMENTS)
