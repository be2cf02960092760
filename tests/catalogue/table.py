"""One wrong input, and what each surface must say to it. A surface that is not there yet is one more column here.

A case has what all surfaces share (its row in the list of bad inputs, the server's stable code, the words of the
sentence: the field, the limit, the way out) and, for each surface on which the mistake can be made, how to make it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf.message import Message

from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.sdk import Headgate
from headgate.sdk.sync import SyncHeadgate
from headgate.wire import producer_pb2


@dataclass(frozen=True, kw_only=True)
class World:
    """What is in the database before anything wrong is sent."""

    folder: Path
    pending: str
    running: str
    running_epoch: int
    done: str
    dead: str
    theirs: str  # another tenant's, running
    sealed_batch: str
    keyed: str  # submitted under the key "once"
    cursor: str  # of a list of all jobs
    big: Path  # JSON of a byte more than a payload may have


Ask: TypeAlias = Callable[[World], tuple[str, Message | bytes]]
"""A unary call: its name, as in Service/Method, and what to send."""
Call: TypeAlias = Callable[[Headgate, World], Awaitable[object]]
Words: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Submit:
    """A submit by the SDK, which has an async and a blocking form."""

    topic: Any = "mail"
    payload: Any = b"{}"
    options: dict[str, Any] = field(default_factory=dict)

    async def send(self, hg: Headgate) -> object:
        return await hg.submit(self.topic, self.payload, **self.options)

    def send_blocking(self, hg: SyncHeadgate) -> object:
        return hg.submit_to(self.topic, self.payload, **self.options)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One wrong input."""

    row: int
    name: str
    says: Words = ()
    code: str = "invalid_input"
    # gRPC: a call that is refused; or, with `receipt`, one whose only result has that code.
    grpc: Ask | None = None
    receipt: int | None = None
    # The SDK, async and blocking.
    sdk: Submit | Call | None = None
    raises: type[HeadgateError] = InvalidInput
    sdk_says: Words | None = None
    # The command line.
    cli: Words | Callable[[World], Words] | None = None
    exits: int = 2
    stdin: bytes = b""
    cli_says: Words | None = None


def new_job(row: int, name: str, says: Words, *, code: str = "invalid_input", **job: Any) -> Case:
    """A submit that only the wire can get wrong like this."""
    return Case(row=row, name=name, says=says, code=code, grpc=submitting(**job))


def submitting(**job: Any) -> Ask:
    """Submit one job over gRPC."""
    request = producer_pb2.SubmitRequest(job=producer_pb2.NewJob(**{"topic": "mail", **job}))
    return lambda _: ("ProducerService/Submit", request)
