"""What a worker and its child processes say to each other.

MessagePack by msgspec, each message checked against its type, and never pickle: a pickle runs whatever its bytes say,
so a handler that was taken over, or a payload that found its way into one, would own the worker too.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

MESSAGE_MAX_BYTES: Final = 8 * 1024 * 1024
"""A payload or a result is at most 1 MiB; what is larger than this does not come from our own code."""
Facts: TypeAlias = tuple[bytes, int, str, bytes, int, int, int, int, int, str]
"""What a child needs to know of a job, in the order of Job's own arguments."""
Said = TypeVar("Said")


class Run(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To the child: run a job with the handler of that module and name. All about it has the number of this job."""

    number: int
    module: str
    name: str
    facts: Facts
    headers: dict[str, str]
    made_by: tuple[str, int]  # the schedule, and for which occurrence
    deadline_us: int


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To the child: the job was asked to stop."""

    number: int


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To the child: interrupt its handler."""

    number: int


class Begun(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From the child: the handler runs."""


class Progress(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From the child: how far the job is."""

    number: int
    done: int
    total: int
    message: str


class Extend(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From the child: the handler wants its lease to last so many seconds."""

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
"""How the other end shows that it is gone, or that it does not say what it should."""


class Pipe(Generic[Said]):
    """One end of the pipe; `hears` is what the other end may say."""

    def __init__(self, connection: Connection[Any, Any], hears: Any) -> None:
        self.connection = connection
        self._decoder: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(hears)

    def send(self, message: ToChild | ToParent) -> None:
        """Raises OSError when the other end is gone, ValueError for a message that is too large."""
        raw = msgspec.msgpack.encode(message)
        if len(raw) > MESSAGE_MAX_BYTES:
            raise ValueError(f"{len(raw)} bytes are too many for one message")
        self.connection.send_bytes(raw)

    def recv(self) -> Said:
        """Wait for the next message; raises one of BROKEN."""
        return self._decoder.decode(self.connection.recv_bytes(MESSAGE_MAX_BYTES))

    def close(self) -> None:
        """Hang up."""
        self.connection.close()
