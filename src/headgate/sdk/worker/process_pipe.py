"""The messages between a worker and its child processes.

MessagePack by msgspec, each message checked against its type, and never pickle: a pickle runs whatever its bytes say,
so a handler that was taken over, or a payload that found its way into one, would own the worker too.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

from headgate.sdk.worker.held_job import Facts

MESSAGE_MAX_BYTES: Final = 8 * 1024 * 1024
"""A payload or a result is at most 1 MiB; what is larger than this does not come from our own code."""
Received = TypeVar("Received")


class Run(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To the child: run a job with the handler of that module and name. All about it has the number of this job."""

    number: int
    module: str
    name: str
    facts: Facts
    headers: dict[str, str]
    schedule: tuple[str, int]  # its name, and the occurrence
    deadline_us: int
    middleware: tuple[tuple[str, str], ...]  # module and name of each, outermost first
    bad_payload: Literal["fail", "retry"]  # as its task was registered, which the module may not show


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To the child: the job was asked to stop."""

    number: int


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To the child: interrupt its handler."""

    number: int


class Begun(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From the child: the handler runs."""


class Progress(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From the child: the handler's progress."""

    number: int
    done: int
    total: int
    message: str


class Extend(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From the child: the handler asks for a lease of so many seconds."""

    number: int
    seconds: int


class Done(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From the child: the result, or else an outcome as the wire has it."""

    number: int
    completed: bool
    raw: bytes


class Log(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From the child: a log record."""

    fields: dict[str, str | int | float | bool | None]


ToChild: TypeAlias = Run | Cancel | Stop
ToParent: TypeAlias = Begun | Progress | Extend | Done | Log
BROKEN: Final = (EOFError, OSError, msgspec.MsgspecError)
"""Errors when the other end is closed, or sends what it should not."""


class Pipe(Generic[Received]):
    """One end of the pipe; `accepts` is the type of the messages it may receive."""

    def __init__(self, connection: Connection[Any, Any], accepts: Any) -> None:
        self.connection = connection
        self._decoder: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(accepts)

    def send(self, message: ToChild | ToParent) -> None:
        """Raises OSError when the other end is closed, ValueError for a message that is too large."""
        raw = msgspec.msgpack.encode(message)
        if len(raw) > MESSAGE_MAX_BYTES:
            raise ValueError(f"{len(raw)} bytes are too many for one message")
        self.connection.send_bytes(raw)

    def recv(self) -> Received:
        """Wait for the next message; raises one of BROKEN."""
        return self._decoder.decode(self.connection.recv_bytes(MESSAGE_MAX_BYTES))

    def close(self) -> None:
        """Close this end."""
        self.connection.close()
