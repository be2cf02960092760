"""The one table from error codes to gRPC statuses, and how an error travels."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final, NoReturn

import grpc

from headgate.domain.errors import HeadgateError, InvalidInput, shortened
from headgate.wire import jobs_pb2

STATUS: Final = {
    "invalid_input": grpc.StatusCode.INVALID_ARGUMENT,
    "invalid_filter": grpc.StatusCode.INVALID_ARGUMENT,
    "too_large": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "not_found": grpc.StatusCode.NOT_FOUND,
    "conflict": grpc.StatusCode.ALREADY_EXISTS,
    "bulk_conflict": grpc.StatusCode.ALREADY_EXISTS,
    "refused": grpc.StatusCode.FAILED_PRECONDITION,
    "wrong_state": grpc.StatusCode.FAILED_PRECONDITION,
    "dependency_cycle": grpc.StatusCode.FAILED_PRECONDITION,
    "batch_sealed": grpc.StatusCode.FAILED_PRECONDITION,
    "unique_taken": grpc.StatusCode.FAILED_PRECONDITION,
    "version_conflict": grpc.StatusCode.ABORTED,
    "already_exists": grpc.StatusCode.ALREADY_EXISTS,
    "protocol_error": grpc.StatusCode.FAILED_PRECONDITION,
    "unauthenticated": grpc.StatusCode.UNAUTHENTICATED,
    "token_revoked": grpc.StatusCode.UNAUTHENTICATED,
    "permission_denied": grpc.StatusCode.PERMISSION_DENIED,
    "backlog_full": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "quota_exceeded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "overloaded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "session_overflow": grpc.StatusCode.RESOURCE_EXHAUSTED,
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
    "too_slow": grpc.StatusCode.FAILED_PRECONDITION,  # again, it would take as long
    "storage_full": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "read_only": grpc.StatusCode.UNAVAILABLE,
    "outcome_unknown": grpc.StatusCode.UNAVAILABLE,
    "internal": grpc.StatusCode.INTERNAL,
}


TEXT_MAX_CHARS: Final = 1_000
GONE: Final = (asyncio.CancelledError, grpc.RpcError, grpc.aio.InternalError, OSError)
"""How a stream whose peer is no more shows itself to whoever reads or writes."""


class ProtocolError(HeadgateError):
    """The peer does not keep to the order of messages."""

    code = "protocol_error"


class RequestTimeout(HeadgateError):
    """The peer began a call or a stream, and did not send the whole of its first message in time."""

    code = "request_timeout"

    def __init__(self, within: timedelta) -> None:
        super().__init__(f"no whole message came within {within.total_seconds():g} s; send it at once, or call again")
        self.within = within


class UnknownMethod(HeadgateError):
    """There is no such method here."""

    code = "unknown_method"

    def __init__(self, method: str) -> None:
        super().__init__(f"there is no method {method[:200]} here; check the address and the release of the client")
        self.method = method


def status_of(error: HeadgateError) -> grpc.StatusCode:
    """The status of an error; one that no table knows is a bug of ours."""
    return STATUS.get(error.code, grpc.StatusCode.INTERNAL)


def text_of(error: HeadgateError) -> str:
    """The error's sentence as peers read it; a database's own text, for one, has no bound."""
    return shortened(str(error), TEXT_MAX_CHARS)


def message_of(error: HeadgateError) -> jobs_pb2.Error:
    """The error as a message, for streams that live on and for results per item."""
    return jobs_pb2.Error(
        code=error.code,
        message=text_of(error),
        field=error.field if isinstance(error, InvalidInput) else "",
        retry_after_ms=getattr(error, "retry_after_ms", 0),
    )


async def end_with(context: grpc.aio.ServicerContext[Any, Any], error: HeadgateError) -> NoReturn:
    """End a call with an error: the status, the sentence, and the stable code in the trailers.

    gRPC keeps the exception that ends a call, and that one the frames it came through and this error: a circle which
    only the collector finds, seconds and thousands of refused calls later. So the caller lets go of what is large.
    """
    error.__traceback__ = None
    trailers = (("headgate-code", error.code), ("headgate-retry-after-ms", str(getattr(error, "retry_after_ms", 0))))
    try:
        await context.abort(status_of(error), text_of(error), trailers)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None  # the peer has left: there is nobody to tell, and nothing to log
    raise AssertionError  # abort never returns
