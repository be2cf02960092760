"""The gRPC port: what a peer may cost, and how the port is opened."""

from __future__ import annotations

from typing import Final

import grpc

from headgate.api.grpc.guard import Guard
from headgate.api.grpc.tls import credentials
from headgate.api.tls import Tls
from headgate.domain import limits
from headgate.domain.errors import InvalidSetting

STREAM_WINDOW_BYTES: Final = 65_536
STREAMS_MAX: Final = 1_000
"""Open streams of one connection; a client waits for a free one."""
ENDED_STREAMS_MAX: Final = 250
"""Streams of one connection that have ended or were reset, and are not put away yet, beyond the open ones. Over that,
new ones are reset. A client that replaces each ended call at once needs 100 to 250 (ADR 25)."""


def new_server(guard: Guard, *, shared_port: bool, connections: int) -> grpc.aio.Server:
    """A server without services yet; it takes so many connections at the most."""
    return grpc.aio.server(
        interceptors=(guard,),
        options=[
            ("grpc.max_receive_message_length", limits.MESSAGE_MAX_BYTES),
            ("grpc.max_send_message_length", 4 * limits.MESSAGE_MAX_BYTES),
            ("grpc.so_reuseport", int(shared_port)),
            ("grpc.max_concurrent_streams", STREAMS_MAX),
            # Without a bound, strangers could take the file descriptors that connections to the database need.
            ("grpc.max_allowed_incoming_connections", connections),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.max_metadata_size", 16_384),
            # No compression (1: "identity" alone): our clients do not compress, and a caller without a token could send
            # a few bytes that stand for many. Compressed messages are refused, and nothing is inflated.
            ("grpc.compression_enabled_algorithms_bitset", 1),
            ("grpc.per_message_decompression", 0),
            # Streams that were reset and are not put away yet count against the 1,000: else a peer that opens and
            # resets streams makes this loop look at hundreds of thousands of them (ADR 25).
            ("grpc.http.overload_protection", 1),
            # Calls that have ended count until this loop has put them away, too. A client that always has 1,000 open
            # opens the next one before: without this, gRPC resets it unread, without a code and a hint of ours.
            ("grpc.http2.max_deallocating_streams", ENDED_STREAMS_MAX),
            # What is sent and not read yet is kept in memory. It is bounded by the window of its stream, 64 KiB;
            # probing for bandwidth would make that megabytes.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", STREAM_WINDOW_BYTES),
            # Calls that were not looked at yet are bounded too: ever more of them are cancelled between these numbers,
            # of any caller. Ten connections without a token, each with all of its streams, do not come to that.
            ("grpc.server.max_pending_requests", 10 * (STREAMS_MAX + ENDED_STREAMS_MAX)),
            ("grpc.server.max_pending_requests_hard_limit", 15_000),
            # A peer that has not sent a whole preface by then is no client of ours, and keeps a descriptor.
            ("grpc.server_handshake_timeout_ms", 10_000),
        ],
    )


def bind(server: grpc.aio.Server, host: str, port: int, tls: Tls | None) -> int:
    """Open the port; returns its number. Raises InvalidSetting."""
    where = f"{host}:{port}"
    try:
        return server.add_insecure_port(where) if tls is None else server.add_secure_port(where, credentials(tls))
    except RuntimeError as error:
        raise InvalidSetting("--port", f"cannot listen on {where}", hint="check whether it is in use") from error
