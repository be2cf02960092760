"""`bench.echo` without gRPC's overload protection: only to tell what that costs."""

from __future__ import annotations

import sys
from typing import Any

import grpc.aio

from bench.echo import add_echo
from headgate.cli import main

_new_server = grpc.aio.server


def unprotected(*, options: list[tuple[str, int]], **others: Any) -> grpc.aio.Server:
    """A server with all of its options but one. Left out is not off: the protection is gRPC's default."""
    changed = [(name, 0 if name == "grpc.http.overload_protection" else value) for name, value in options]
    assert changed != options
    return _new_server(options=changed, **others)


if __name__ == "__main__":
    add_echo()
    grpc.aio.server = unprotected  # type: ignore[assignment]  # it is called by these keywords only
    sys.exit(main())
