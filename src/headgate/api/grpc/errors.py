"""The table from error codes to gRPC statuses, and errors as messages."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NoReturn

import grpc

from headgate.domain.errors import HeadgateError, InvalidInput, shortened
from headgate.domain.log_fields import REQUEST_ID
from headgate.domain.request_ids import HEADER
from headgate.wire import jobs_pb2

STATUS: Final = {
    "invalid_input": grpc.StatusCode.INVALID_ARGUMENT,
    "payload_mismatch": grpc.StatusCode.INVALID_ARGUMENT,
    "invalid_filter": grpc.StatusCode.INVALID_ARGUMENT,
    "too_large": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "not_found": grpc.StatusCode.NOT_FOUND,
    "conflict": grpc.StatusCode.ALREADY_EXISTS,
    "bulk_conflict": grpc.StatusCode.ALREADY_EXISTS,
    "refused": grpc.StatusCode.FAILED_PRECONDITION,
    "wrong_state": grpc.StatusCode.FAILED_PRECONDITION,
    "stale_lease": grpc.StatusCode.FAILED_PRECONDITION,
    "dependency_cycle": grpc.StatusCode.FAILED_PRECONDITION,
    "batch_sealed": grpc.StatusCode.FAILED_PRECONDITION,
    "unique_taken": grpc.StatusCode.FAILED_PRECONDITION,
    "version_conflict": grpc.StatusCode.ABORTED,
    "already_exists": grpc.StatusCode.ALREADY_EXISTS,
    "protocol_error": grpc.StatusCode.FAILED_PRECONDITION,
    "unauthenticated": grpc.StatusCode.UNAUTHENTICATED,
    "token_revoked": grpc.StatusCode.UNAUTHENTICATED,
    "credentials_unavailable": grpc.StatusCode.UNAVAILABLE,
    "permission_denied": grpc.StatusCode.PERMISSION_DENIED,
    "backlog_full": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "quota_exceeded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "overloaded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "rate_limited": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "session_overflow": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "slow_reader": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "too_many_streams": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "superseded": grpc.StatusCode.ABORTED,
    "unknown_jobs": grpc.StatusCode.ABORTED,
    "worker_id_taken": grpc.StatusCode.ALREADY_EXISTS,
    "request_timeout": grpc.StatusCode.DEADLINE_EXCEEDED,
    "unknown_method": grpc.StatusCode.UNIMPLEMENTED,
    "session_silent": grpc.StatusCode.DEADLINE_EXCEEDED,
    "session_forgotten": grpc.StatusCode.UNAVAILABLE,
    "shutting_down": grpc.StatusCode.UNAVAILABLE,
    "store_unavailable": grpc.StatusCode.UNAVAILABLE,
    "store_busy": grpc.StatusCode.UNAVAILABLE,
    "row_locked": grpc.StatusCode.UNAVAILABLE,
    "too_slow": grpc.StatusCode.FAILED_PRECONDITION,  # a retry would take as long
    "storage_full": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "read_only": grpc.StatusCode.UNAVAILABLE,
    "outcome_unknown": grpc.StatusCode.UNAVAILABLE,
    "internal": grpc.StatusCode.INTERNAL,
}


TEXT_MAX_CHARS: Final = 1_000
GONE: Final = (asyncio.CancelledError, grpc.RpcError, grpc.aio.InternalError, OSError)
"""Raised by reads and writes of a stream whose peer has left."""


class ProtocolError(HeadgateError):
    """The peer has violated the order of messages."""

    code = "protocol_error"


class UnknownMethod(HeadgateError):
    """The server has no such method."""

    code = "unknown_method"

    def __init__(self, method: str) -> None:
        super().__init__(f"no method {method[:200]}; check the address and the version of the client")
        self.method = method


def status_of(error: HeadgateError) -> grpc.StatusCode:
    """The status of an error; INTERNAL for a code that is not in the table."""
    return STATUS.get(error.code, grpc.StatusCode.INTERNAL)


def text_of(error: HeadgateError) -> str:
    """The text of an error, shortened: the text of a database error, for example, has no bound."""
    return shortened(str(error), TEXT_MAX_CHARS)


def retry_info(status: grpc.StatusCode, text: str, wait_ms: int) -> bytes:
    """A google.rpc.Status with a RetryInfo, which gRPC clients of any language know how to read.

    Not generated: two messages of three fields do not justify a dependency.
    """
    seconds, rest = divmod(wait_ms, 1000)
    delay = _field(1, seconds) + _field(2, rest * 1_000_000)  # google.protobuf.Duration: seconds, nanos
    packed = _field(1, b"type.googleapis.com/google.rpc.RetryInfo") + _field(2, _field(1, delay))
    return _field(1, status.value[0]) + _field(2, text.encode("utf-8", "replace")) + _field(3, packed)


def _field(number: int, value: int | bytes) -> bytes:
    """One field of a protobuf message: a varint, or bytes with their length."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value) if value else b""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def message_of(error: HeadgateError) -> jobs_pb2.Error:
    """The error as a message, for streams that continue and for results of single items."""
    return jobs_pb2.Error(
        code=error.code,
        message=text_of(error),
        field=error.field if isinstance(error, InvalidInput) else "",
        retry_after_ms=getattr(error, "retry_after_ms", 0),
    )


async def end_with(context: grpc.aio.ServicerContext[Any, Any], error: HeadgateError) -> NoReturn:
    """End a call with an error: status, text, and the stable code in the trailers.

    gRPC keeps the exception that ends a call, which refers to the frames it passed and to this error: a cycle that only
    the garbage collector frees, after thousands of refused calls. So callers drop references to large objects first.
    """
    error.__traceback__ = None
    status, text, wait = status_of(error), text_of(error), getattr(error, "retry_after_ms", 0)
    trailers: tuple[tuple[str, str | bytes], ...] = (
        ("headgate-code", error.code),
        ("headgate-retry-after-ms", str(wait)),
        (HEADER, REQUEST_ID.get()),
    )
    if wait:
        trailers += (("grpc-status-details-bin", retry_info(status, text, wait)),)
    try:
        await context.abort(status, text, trailers)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None  # the peer has left: nothing to answer or log
    raise AssertionError  # abort never returns
