"""`bench.echo` without gRPC's overload protection: only to tell what that costs."""

from __future__ import annotations

import sys
from typing import Any

import grpc.aio

from bench.echo import add_echo
from headgate.cli import main

_new_server = grpc.aio.server


def unprotected(*, options: list[tuple[str, int]], **others: Any) -> grpc.aio.Server:
    """A server with all of its options but one."""
    kept = [(name, value) for name, value in options if name != "grpc.http.overload_protection"]
    assert len(kept) == len(options) - 1
    return _new_server(options=kept, **others)


if __name__ == "__main__":
    add_echo()
    grpc.aio.server = unprotected  # type: ignore[assignment]  # it is called by these keywords only
    sys.exit(main())
