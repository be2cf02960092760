"""Responses that are streams: their text, what they are asked for, and how they end when the client does not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Literal, Self, cast
from uuid import UUID

import pytest
from litestar.response.base import ASGIResponse

from headgate.api.http.handover import _Stream
from headgate.api.http.routes import events
from headgate.control import streams
from headgate.control.streams import OpenStream, SharedReader
from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.domain.events import Alive, Ended, EventFilter, Gap, Happened, Opened, Position, SlowReader, StreamEvent
from headgate.domain.hints import Hint, HintKind, Versions
from headgate.domain.ids import JobId
from headgate.web.pages import live
from tests.support.dispatch_waits import soon

AT = datetime(2026, 1, 1, tzinfo=UTC)
HERE = Position(at_ms=7, restores=0, xmin=1, xmax=2)
ID = JobId(UUID(int=5))


class Source:
    """One item after the other; overdue when a test says so."""

    def __init__(self) -> None:
        self.late, self.closed = asyncio.Event(), False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        return "more"

    async def aclose(self) -> None:
        self.closed = True

    async def overdue(self) -> None:
        await self.late.wait()


async def test_a_response_that_is_overdue_ends_while_the_client_does_not_read() -> None:
    source, blocked = Source(), asyncio.Event()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            blocked.set()
            await asyncio.Event().wait()

    plain = ASGIResponse(media_type="text/event-stream")
    answer = _Stream(plain, source, str.encode)
    async with asyncio.timeout(30):
        running = asyncio.create_task(answer(cast("Any", {}), receive, send))
        await blocked.wait()
        assert not running.done()
        source.late.set()
        await running
    assert source.closed


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (Opened(position=HERE), f"retry: 2000\nid: {HERE}\nevent: open\ndata: {{}}\n\n"),
        (Alive(position=HERE), f": alive\nid: {HERE}\n\n"),
        (
            Gap(since=AT, until=AT, reason="restored"),
            'event: gap\ndata: {"since_us":1767225600000000,"until_us":1767225600000000,"reason":"restored"}\n\n',
        ),
        (
            Happened(event=StreamEvent(id="e", kind="job.failed", at=AT, tenant_no=1, xid=1, data={"attempt": 3})),
            'event: job.failed\ndata: {"event_id":"e","kind":"job.failed","at_us":1767225600000000,"attempt":3}\n\n',
        ),
        (
            Happened(
                event=StreamEvent(id="e", kind="job.failed", at=AT, tenant_no=1, xid=1, topic="mail", job_id=ID),
                position=HERE,
            ),
            (
                f'id: {HERE}\nevent: job.failed\ndata: {{"event_id":"e","kind":"job.failed","at_us":1767225600000000,'
                f'"topic":"mail","job_id":"{ID}"}}\n\n'
            ),
        ),
        (
            Ended(error=SlowReader("too slow")),
            'event: end\ndata: {"code":"slow_reader","message":"too slow"}\n\n',
        ),
    ],
)
def test_an_item_of_the_stream_of_events_is_one_event_with_its_position(item: Any, text: str) -> None:
    assert events.encoded(item).decode() == text


async def test_the_stream_of_events_is_asked_for_what_the_query_names() -> None:
    asked: list[object] = []

    async def opened(caller: str, wanted: EventFilter, *, last_event_id: str) -> Source:
        asked.extend((caller, wanted, last_event_id))
        return Source()

    request = cast("Any", SimpleNamespace(caller="ana", cases=SimpleNamespace(events=SimpleNamespace(open=opened))))
    named = {"topic": "mail, ,sms,", "job_id": f" {ID} ", "kind": "job.failed", "batch": ID, "last_event_id": "3.4"}
    answer = await events.follow_events.fn(request, **named)
    wanted = EventFilter(
        topics=frozenset({"mail", "sms"}), jobs=frozenset({ID}), kinds=frozenset({"job.failed"}), batch=ID
    )
    assert asked == ["ana", wanted, "3.4"]
    assert answer.media_type == "text/event-stream"
    with pytest.raises(InvalidInput, match="job_id: is not a UUID"):
        await events.follow_events.fn(request, job_id="mail")


def test_a_hint_is_one_event_with_the_versions_and_a_silent_stream_a_comment() -> None:
    versions = Versions(by_kind={HintKind.JOBS: 3})
    assert live.encoded(Hint(kinds=[], versions=versions, alive=True)) == b": alive\n\n"
    text = f'retry: 3000\nid: {versions}\nevent: hint\ndata: {{"kinds":["jobs"]}}\n\n'
    assert live.encoded(Hint(kinds=[HintKind.JOBS], versions=versions)).decode() == text


@pytest.mark.parametrize(("header", "query", "begins"), [("2.h", "1.q", "2.h"), ("", "1.q", "1.q"), ("", "", "")])
@pytest.mark.parametrize("dev", [False, True])
async def test_hints_begin_where_the_browser_was_and_end_with_its_session(
    header: str, query: str, begins: str, *, dev: bool
) -> None:
    asked: dict[str, Any] = {}

    async def opened(caller: str, **named: Any) -> Source:
        asked.update(named, caller=caller)
        return Source()

    request = SimpleNamespace(
        caller="ana",
        cookies={"hg_session": "secret", "__Host-hg_session": "secret"},
        is_secure=False,
        visitor=SimpleNamespace(dev=dev),
        cases=SimpleNamespace(
            live=SimpleNamespace(open=opened), web_sessions=SimpleNamespace(identify=lambda secret: f"session {secret}")
        ),
    )
    answer = await live.follow_hints.fn(cast("Any", request), after=query, last_event_id=header)
    assert (asked["caller"], asked["last_event_id"]) == ("ana", begins)
    assert (asked["still_open"] is None) == dev
    if not dev:
        assert asked["still_open"]().startswith("session ")
    assert answer.headers["cache-control"] == "no-store"


async def test_a_stream_is_overdue_only_if_its_credential_is_still_changed_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "END_WITHIN", 0)

    class Changed(asyncio.Event):
        waits = 0

        async def wait(self) -> Literal[True]:
            self.waits += 1
            return await super().wait()

    changed = Changed()

    async def items() -> AsyncGenerator[str, None]:
        yield "one"

    stream = OpenStream(items(), cast("Any", SimpleNamespace(changed=changed)), ExitStack())
    overdue = asyncio.create_task(stream.overdue())
    await soon(lambda: changed.waits == 1, "it waits for a change")
    changed.set()
    changed.clear()  # its client reads, and the stream has taken the new rights
    await soon(lambda: changed.waits == 2 or overdue.done(), "it has looked again")
    assert not overdue.done()
    changed.set()
    async with asyncio.timeout(30):
        await overdue
    await stream.aclose()


async def test_a_reader_without_streams_stops_when_it_is_asked_to() -> None:
    idles = asyncio.Event()

    class Idle(SharedReader):
        def __len__(self) -> int:
            return 0

        def idle(self) -> None:
            idles.set()

        async def run_once(self) -> int:
            raise AssertionError

        def delayed(self, error: HeadgateError) -> None:
            raise AssertionError

    reader = Idle(every=30)
    running = asyncio.create_task(reader.run())
    async with asyncio.timeout(30):
        await idles.wait()
        reader.stop()
        await running
