"""Channels, the server's methods, and errors for its refusals."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Generic, TypeAlias, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from headgate.domain.errors import AlreadyExists, HeadgateError, NotFound, Refused, VersionConflict
from headgate.domain.request_ids import HEADER
from headgate.sdk.addresses import Address
from headgate.sdk.errors import (
    RETRIED,
    Forbidden,
    NotAcknowledged,
    NotConnected,
    Overloaded,
    ServerError,
    SubmitRefused,
    Superseded,
    Unauthenticated,
    VersionMismatch,
)
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import producer_pb2 as producer
from headgate.wire import worker_pb2 as worker

try:
    VERSION: Final = version("headgate")
except PackageNotFoundError:  # run from a source tree
    VERSION = "0"  # type: ignore[misc]
CLIENT: Final = f"headgate-python/{VERSION}"

Asked = TypeVar("Asked", bound=Message)
Answered = TypeVar("Answered", bound=Message)
WorkCall: TypeAlias = "grpc.aio.StreamStreamCall[worker.WorkerFrame, worker.ServerFrame]"
ProduceCall: TypeAlias = "grpc.aio.StreamStreamCall[producer.ProducerFrame, producer.ProducerReply]"

FRAME_MAX_BYTES: Final = 64 * 1024 * 1024  # frames are bounded by their makers to about 1 MB plus one job of 1 MiB
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", FRAME_MAX_BYTES),
    ("grpc.max_send_message_length", FRAME_MAX_BYTES),
    # A channel of ours is one connection attempt: a shared subchannel would carry over gRPC's own backoff, and a
    # server that is back would not be tried for up to two minutes.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: servers do not compress, and refuse what is
)

SHORTEST_RETRY_SECONDS: Final = 0.1
"""After a refusal that names no time, or a shorter one."""
SERVERS_TROUBLE: Final = frozenset({"internal", "store_error", "storage_full", "schema_mismatch", "instance_forgotten"})
"""Codes of the server that say nothing about what was sent."""


def open_channel(address: Address) -> grpc.aio.Channel:
    """A channel of its own; it connects at the first call. On the I/O loop only."""
    if address.tls:
        trust = address.trust
        credentials = grpc.ssl_channel_credentials(trust.ca, trust.key, trust.certificate)
        return grpc.aio.secure_channel(address.target, credentials, options=_OPTIONS)
    return grpc.aio.insecure_channel(address.target, options=_OPTIONS)


async def connected(channel: grpc.aio.Channel) -> None:
    """Return when the connection is open, or has failed: then the next call says why."""
    connecting = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)
    while (state := channel.get_state(try_to_connect=True)) in connecting:
        await channel.wait_for_state_change(state)


def open_work(channel: grpc.aio.Channel, token: str) -> WorkCall:
    """Begin the worker's stream."""
    begin = channel.stream_stream(
        "/headgate.v1.WorkerService/Work",
        request_serializer=worker.WorkerFrame.SerializeToString,
        response_deserializer=worker.ServerFrame.FromString,
    )
    return cast("WorkCall", begin(metadata=bearer(token)))  # the stubs know the request as any message


def open_produce(channel: grpc.aio.Channel, token: str) -> ProduceCall:
    """Begin the producer's stream."""
    begin = channel.stream_stream(
        "/headgate.v1.ProducerService/Produce",
        request_serializer=producer.ProducerFrame.SerializeToString,
        response_deserializer=producer.ProducerReply.FromString,
    )
    return cast("ProduceCall", begin(metadata=bearer(token)))  # as above


async def say_hello(call: WorkCall | ProduceCall, frame: Message) -> None:
    """Write the first frame. Raises the server's status if it has refused the stream, for example for a bad token."""
    try:
        await cast("grpc.aio.StreamStreamCall[Message, Message]", call).write(frame)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        # A write says only that the stream is over. (Once in a hundred times grpc.aio then forgets the server's status
        # and calls it an internal error; that is tried again.)
        await call.read()
        raise


async def next_frame(call: WorkCall) -> worker.ServerFrame | None:
    """Read one frame; None at the end. The stubs join the end's marker and the message to `object`."""
    return cast("worker.ServerFrame", frame) if (frame := await call.read()) else None


@dataclass(frozen=True, slots=True)
class Method(Generic[Asked, Answered]):
    """A call of one message for one message."""

    path: str
    request: type[Asked]
    response: type[Answered]
    repeatable: bool = True
    """Whether a call whose answer was lost may be made again; else it raises, since the outcome is unknown."""

    async def __call__(self, channel: grpc.aio.Channel, request: Asked, *, token: str, seconds: float) -> Answered:
        """Make it."""
        call = channel.unary_unary(
            f"/headgate.v1.{self.path}",
            request_serializer=self.request.SerializeToString,
            response_deserializer=self.response.FromString,
        )
        return await call(request, timeout=seconds, metadata=bearer(token))


GET_JOB: Final = Method("ProducerService/GetJob", producer.GetJobRequest, jobs.JobInfo)
WAIT_RESULT: Final = Method("ProducerService/WaitResult", producer.WaitResultRequest, jobs.JobInfo)
REPORT_OUTCOME: Final = Method("WorkerService/ReportOutcome", worker.ReportOutcomeRequest, worker.ReportOutcomeResponse)


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a call or a stream; each has an id of its own, by which the server's log lines are found."""
    request_id = (HEADER, os.urandom(8).hex())
    return (("authorization", f"Bearer {token}"), request_id) if token else (request_id,)


_REFUSED_BEFORE: Final = frozenset(
    {"store_unavailable", "store_busy", "row_locked", "read_only", "shutting_down", "credentials_unavailable"}
)

_OWN_KINDS: Final[dict[str, type[Refused]]] = {
    "version_conflict": VersionConflict,
    "already_exists": AlreadyExists,
    "refused": Refused,
}
"""Errors without fields of their own, by the server's code."""

# --- refusals ------------------------------------------------------------------------------------------------------

LASTING: Final = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
)
"""A retry would get the same answer: these are raised at once."""


def explain(
    error: grpc.aio.AioRpcError | Exception,
    address: Address,
    *,
    about: tuple[str, str] | None = None,
    answered: bool = False,
) -> HeadgateError:
    """Turn a failed call into one sentence with the address and the next step; `about` is what it asked for.

    A missing ("schedule", "nightly") is a NotFound of that name. `answered`: a server has answered there before.
    """
    if isinstance(error, HeadgateError):
        return error
    explained = _explained(error, address, about=about, answered=answered)
    if isinstance(error, grpc.aio.AioRpcError):
        explained.request_id = trailer(error, HEADER)
    return explained


def _explained(
    error: grpc.aio.AioRpcError | Exception, address: Address, *, about: tuple[str, str] | None, answered: bool
) -> HeadgateError:
    if not isinstance(error, grpc.aio.AioRpcError):
        return ServerError(f"the connection to {address} failed: {type(error).__name__}: {str(error)[:200]}")
    status, details, reported = error.code(), (error.details() or "").strip(), reported_code(error)
    if reported == "superseded":
        return Superseded(f"{address} disconnected this worker: {details}; give every worker an id of its own")
    match status:
        case grpc.StatusCode.UNAVAILABLE if reported == "read_only":
            return ServerError(f"{address} can change nothing now: {details[:500]}", reported=reported)
        case grpc.StatusCode.UNAVAILABLE:
            return not_connected(address, details, answered=answered)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return NotConnected(f"{address} did not answer in time; see whether the server is overloaded or hangs")
        case grpc.StatusCode.UNAUTHENTICATED:
            return Unauthenticated(f"{address} refused: {details}; check HEADGATE_TOKEN")
        case grpc.StatusCode.PERMISSION_DENIED:
            return Forbidden(f"{address} refused: {details}; use a token that allows it")
        case grpc.StatusCode.NOT_FOUND:
            return NotFound(*about) if about else ServerError(f"{address}: {details}", reported=reported)
        case grpc.StatusCode.UNIMPLEMENTED:
            return VersionMismatch(
                f"{address} does not know this call of {CLIENT} ({details}); "
                "use an SDK and a server of the same release, and check that this is Headgate's gRPC port"
            )
        case grpc.StatusCode.INVALID_ARGUMENT:
            return _refused(details, reported or "invalid_input")
        case _ if reported == "too_large":
            return _refused(details, reported)
        case _ if reported == "rate_limited":
            return Overloaded(f"{address} refused: {details}", retry_after=retry_after(error) or 1.0)
        case _ if (kind := _OWN_KINDS.get(reported)) is not None:
            return kind(details)
        case _:
            name = status.name.lower()
            return ServerError(
                f"{address} answered {reported or name}: {details[:500] or 'no reason given'}",
                reported=reported or name,
            )


def _refused(details: str, reported: str) -> SubmitRefused:
    """The server's sentence begins with the field that is wrong."""
    field, colon, problem = details.partition(": ")
    if not colon:
        field, problem = "request", details
    return SubmitRefused(field, problem, reported=reported)


_HANDSHAKES: Final = (
    (True, "WRONG_VERSION_NUMBER", "it does not answer by TLS; write the address without https://"),
    (True, "peer certificate", "its certificate is for another name; dial it by the name in its certificate"),
    (True, "Hostname Verification", "its certificate is for another name; dial it by the name in its certificate"),
    (True, "VERIFY_FAILED", "no authority we trust has signed its certificate; pass ca=..., or set HEADGATE_CA"),
    (
        True,
        "Socket closed",
        "it closed the connection in the TLS handshake; if it asks for a certificate, pass certificate=... and key=...",
    ),
    (False, "Socket closed", "it closed the connection at once; if it serves TLS, write https:// before the address"),
)
"""By TLS or not, what gRPC says, and what that means."""


_UNKNOWN_HOST: Final = ("errors resolving", "DNS resolution failed")


def not_connected(address: Address, details: str = "", *, answered: bool = False) -> NotConnected:
    """The error for a server that does not answer, or not as a Headgate server."""
    if any(mark in details for mark in _UNKNOWN_HOST):
        host = address.target.rpartition(":")[0]
        return NotConnected(
            f'cannot resolve the host name "{host}"; check its spelling in HEADGATE_URL or --url, and DNS'
        )
    for tls, mark, sentence in _HANDSHAKES:
        # A connection that worked before ends this way when its server is killed.
        if tls == address.tls and mark in details and not (answered and mark == "Socket closed"):
            return NotConnected(f"cannot connect to Headgate at {address}: {sentence}")
    if "refused" in details.lower():
        reason = "connection refused"
    elif "Socket closed" in details or "reset by peer" in details:
        reason = "connection closed"
    else:
        reason = details[:160] or "no answer"
    if address.is_loopback:
        advice = "start one with `headgate dev`, or set HEADGATE_URL to the address of another"
    else:
        advice = "see whether `headgate serve` runs there, or set HEADGATE_URL to another address"
    return NotConnected(f"cannot reach a Headgate server at {address} ({reason}); {advice}")


def reported_code(error: grpc.aio.AioRpcError) -> str:
    """The server's error code, from the trailers."""
    return trailer(error, "headgate-code")


def trailer(error: grpc.aio.AioRpcError, wanted: str) -> str:
    """A value of the trailers; empty if there is none."""
    for name, value in error.trailing_metadata() or ():
        if name == wanted:
            return value if isinstance(value, str) else value.decode("ascii", "replace")
    return ""


def retry_after(error: grpc.aio.AioRpcError) -> float | None:
    """Seconds after which this server may take the same request; None if it will not take it."""
    code = reported_code(error)
    if code not in RETRIED or code == "shutting_down":
        return None
    hint = dict(error.trailing_metadata() or ()).get("headgate-retry-after-ms", "0")
    milliseconds = int(hint) if hint.isdigit() else 0
    return max(SHORTEST_RETRY_SECONDS, milliseconds / 1000)


def rate_limited(error: BaseException) -> float:
    """Seconds to wait when the token has reached its rate limit; 0 for any other error."""
    if not isinstance(error, grpc.aio.AioRpcError) or reported_code(error) != "rate_limited":
        return 0.0
    return retry_after(error) or 0.0


def never_arrived(error: grpc.aio.AioRpcError) -> bool:
    """True if the server certainly did nothing: it was not reached, or it refused before it began."""
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return False
    return reported_code(error) in _REFUSED_BEFORE or "failed to connect" in (error.details() or "").lower()


def answer_lost(error: grpc.aio.AioRpcError, address: Address) -> NotAcknowledged:
    """The error for a call that was sent and must not be made again, since it may have been carried out."""
    why = (error.details() or "").strip()[:160] or "no answer"
    lost = NotAcknowledged(
        f"{address} did not acknowledge this call ({why}); it may have taken effect: see whether it has before you "
        "make it again"
    )
    lost.request_id = trailer(error, HEADER)
    return lost


def is_final(error: BaseException) -> bool:
    """True if a retry, here or elsewhere, would get the same answer.

    `token_revoked` ends a stream also when its token permits more than before: the next hello says whether it is valid.
    """
    if not isinstance(error, grpc.aio.AioRpcError):
        return isinstance(error, Superseded)
    reported = reported_code(error)
    return (error.code() in LASTING and reported != "token_revoked") or reported == "superseded"


def is_unauthenticated(error: BaseException) -> bool:
    """True if the server does not know the token."""
    return isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.UNAUTHENTICATED
