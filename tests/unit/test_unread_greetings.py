"""Peers that read nothing: neither their greeting nor their last replies keep a stream open forever."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.api.grpc import producer_stream, worker_service
from headgate.api.grpc.auth import ADMISSION, CALLER, Admission, Turns
from headgate.api.grpc.producer_service import ProducerService
from headgate.api.grpc.worker_service import WorkerService
from headgate.control.auth import AllowAll
from headgate.control.permissions import RULES
from headgate.control.revocation import OpenCalls
from headgate.control.submit import Submits
from headgate.dispatch.session_rules import SessionRules
from headgate.domain.identity import Identity, TokenRevoked
from headgate.wire import producer_pb2, worker_pb2
from tests.support.fake_server import until
from tests.support.queue import new_id


class Aborted(Exception):
    """The status was given."""


class Deaf:
    """A stream whose peer reads so many messages, and says what it is given, then no more."""

    def __init__(self, *frames: Any, reads: int) -> None:
        self.frames, self.reads, self.written = [*frames], reads, 0

    async def read(self) -> Any:
        return self.frames.pop(0) if self.frames else None

    async def write(self, _message: object) -> None:
        self.written += 1
        if self.written > self.reads:
            await asyncio.Event().wait()

    async def abort(self, _status: object, _details: str, trailers: Any) -> None:
        raise Aborted(dict(trailers)["headgate-code"])


class Door(AllowAll):
    """Open until it is shut."""

    shut = False

    def recheck(self, identity: Identity, *, uses: bool = True) -> Identity:
        del uses
        if Door.shut:
            raise TokenRevoked("not any more")
        return identity


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (producer_stream, worker_service):
        monkeypatch.setattr(module, "LAST_WRITE_SECONDS", 0.01)
    monkeypatch.setattr(Door, "shut", False)
    CALLER.set(Door().identify(""))
    ADMISSION.set(Admission(Door(), RULES["/headgate.v1.ProducerService/Produce"], Turns()))


def producers(calls: OpenCalls) -> ProducerService:
    queue: Any = SimpleNamespace(
        new_account=object,
        admit=lambda *_: None,
        schemas_of=lambda _: {},
        payload_sizes_of=lambda _: {},
        checks_payloads=lambda *_: False,
    )
    submits: Any = Submits(queue, queue, make_id=new_id)
    jobs: Any = None
    return ProducerService(
        validator=Door(),
        calls=calls,
        submits=submits,
        jobs=jobs,
        instance="i",
        version="v",
        draining=asyncio.Event(),
    )


HELLO = producer_pb2.ProducerFrame(hello=producer_pb2.ProducerHello())


async def test_a_producer_that_has_said_all_and_reads_nothing_ends_with_its_token() -> None:
    calls = OpenCalls()
    bad = producer_pb2.ProducerFrame(seq=1, plain=producer_pb2.PlainJobs())  # answered with an error
    stream: Any = Deaf(HELLO, bad, reads=1)
    serving = asyncio.create_task(producers(calls).produce(None, stream))
    await until(lambda: stream.written == 2 and not stream.frames, "its reply is being written")
    assert not serving.done()
    Door.shut = True
    for call in calls:
        call.changed.set()
    with pytest.raises(Aborted, match="token_revoked"):
        await asyncio.wait_for(serving, 10)


async def test_a_producer_that_does_not_read_its_greeting_is_not_waited_for() -> None:
    stream: Any = Deaf(HELLO, reads=0)
    serving = asyncio.create_task(producers(OpenCalls()).produce(None, stream))
    done, _ = await asyncio.wait((serving,), timeout=10)
    assert done
    assert serving.cancelled()


async def test_a_worker_that_does_not_read_its_greeting_is_not_waited_for() -> None:
    closed: list[object] = []

    async def tenant_no(_name: str) -> int:
        return 1

    async def declare(*_: object) -> list[Any]:
        return []

    def nothing(*_: object) -> None:
        return None

    parts: Any = {
        "tenants": SimpleNamespace(tenant_no=tenant_no),
        "sessions": SimpleNamespace(check_capacity=nothing, open=nothing, close=closed.append),
        "renewer": SimpleNamespace(declare=declare),
        "lost_workers": SimpleNamespace(add=nothing, came_back=nothing),
        "demands": SimpleNamespace(revoke=nothing),
        "outcomes": None,
        "unmatched": None,
        "progress": None,
        "logs": None,
        "pulls": None,
    }
    rules = SessionRules(now=lambda: 0.0, lease_ms=60_000, accepting=lambda: True, **parts)
    service = WorkerService(rules, uuids=list, topics=parts["tenants"], instance="i", version="v")
    stream: Any = Deaf(reads=0)
    opening = asyncio.create_task(service._open(worker_pb2.Hello(worker_id="w"), stream))
    done, _ = await asyncio.wait((opening,), timeout=10)
    assert done
    assert opening.cancelled()
    assert len(closed) == 1
