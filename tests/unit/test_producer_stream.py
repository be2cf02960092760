"""A producer's stream: every frame is submitted with the rights that its token has at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import grpc
import pytest

from headgate.api.grpc.auth import ADMISSION, CALLER, Admission, Turns, caller
from headgate.api.grpc.methods import first_message
from headgate.api.grpc.producer_stream import ProducerStream
from headgate.control.permissions import RULES
from headgate.control.revocation import OpenCalls
from headgate.domain.identity import Identity, Scope, TokenRevoked
from headgate.domain.topic_sets import TopicSet
from headgate.wire import producer_pb2 as pb

MIA = Identity(tenant="acme", subject="mia", scopes=frozenset({Scope.SUBMIT, Scope.READ}))


class Ended(Exception):
    """What `abort` of gRPC raises."""


class Peer:
    """The frames of a producer, one after the other, and what it is sent."""

    def __init__(self, *frames: pb.ProducerFrame) -> None:
        self._frames = list(frames)
        self.replies: list[pb.ProducerReply] = []
        self.code = ""

    async def read(self) -> object:
        return self._frames.pop(0) if self._frames else grpc.aio.EOF

    async def write(self, reply: pb.ProducerReply) -> None:
        self.replies.append(reply)

    async def abort(self, status: object, text: str, trailers: tuple[tuple[str, str], ...]) -> None:
        del status, text
        self.code = dict(trailers)["headgate-code"]
        raise Ended


class Rights:
    """A validator for which the token has these rights at one check after the other, and then the last ones."""

    def __init__(self, *rights: Identity | TokenRevoked) -> None:
        self._rights = list(rights)

    def recheck(self, identity: Identity, *, uses: bool = True) -> Identity:
        del identity, uses
        found = self._rights.pop(0) if len(self._rights) > 1 else self._rights[0]
        if isinstance(found, TokenRevoked):
            raise found
        return found


class Submits:
    """Notes who submits which frame."""

    def __init__(self) -> None:
        self.callers: list[Identity] = []

    def stream_account(self) -> None:
        return None

    async def frame(self, caller: Identity, *_: object, done: Callable[[list[Any]], None], **__: object) -> None:
        self.callers.append(caller)
        done([])


@pytest.fixture
def serve() -> Iterator[Callable[..., Any]]:
    async def served(*rights: Identity | TokenRevoked) -> tuple[Submits, Peer]:
        """A stream of two frames; the first rights are those of its hello."""
        validator: Any = Rights(*rights)
        ADMISSION.set(Admission(validator, RULES["/headgate.v1.ProducerService/Produce"], Turns()))
        plain = pb.PlainJobs(topic="mail", ids=[bytes(16)], payloads=[b""])
        hello = pb.ProducerFrame(hello=pb.ProducerHello())
        peer = Peer(hello, *(pb.ProducerFrame(seq=seq, plain=plain) for seq in (1, 2)))
        submits = Submits()
        stream = ProducerStream(cast("Any", submits), validator, OpenCalls(), asyncio.Event(), cast("Any", peer))
        try:
            async with asyncio.timeout(10):
                await stream.run(pb.ProducerHelloAck())
        except Ended:
            pass
        return submits, peer

    token = CALLER.set(MIA)
    yield served
    CALLER.reset(token)


async def test_frames_of_a_token_that_is_valid_are_submitted_and_answered(serve: Callable[..., Any]) -> None:
    submits, peer = await serve(MIA)
    assert submits.callers == [MIA, MIA]
    assert [reply.seq for reply in peer.replies] == [0, 1, 2]


async def test_a_frame_that_comes_after_the_revocation_of_its_token_is_not_submitted(
    serve: Callable[..., Any],
) -> None:
    submits, peer = await serve(MIA, MIA, TokenRevoked("the token of mia is not valid any more"))
    assert submits.callers == [MIA]
    assert [reply.seq for reply in peer.replies] == [0, 1]
    assert peer.code == "token_revoked"


async def test_a_frame_that_comes_after_its_token_has_lost_the_scope_is_not_submitted(
    serve: Callable[..., Any],
) -> None:
    submits, peer = await serve(MIA, MIA, replace(MIA, scopes=frozenset({Scope.READ})))
    assert submits.callers == [MIA]
    assert [reply.seq for reply in peer.replies] == [0, 1]
    assert peer.code == "permission_denied"


async def test_each_frame_has_the_topics_that_its_token_permits_at_that_moment(serve: Callable[..., Any]) -> None:
    narrowed = replace(MIA, topics=TopicSet.of("print"))
    submits, _ = await serve(MIA, MIA, narrowed)
    assert submits.callers == [MIA, narrowed]


async def test_a_call_has_the_rights_that_its_token_has_when_the_request_has_arrived() -> None:
    narrowed = replace(MIA, topics=TopicSet.of("print"))
    validator: Any = Rights(narrowed)
    admission = ADMISSION.set(Admission(validator, RULES["/headgate.v1.ProducerService/GetJob"], Turns()))
    token = CALLER.set(MIA)  # as the guard found it at the headers
    try:
        request: Any = Peer(cast("Any", pb.GetJobRequest()))
        assert await first_message(request, pb.GetJobRequest) is not None
        assert caller() == narrowed
    finally:
        CALLER.reset(token)
        ADMISSION.reset(admission)
