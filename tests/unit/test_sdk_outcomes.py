"""What a handler returns or raises, and what is sent of it on the wire."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from headgate import Abandon, Fail, Headgate, InvalidInput, Job, Nack, Snooze
from headgate.domain import limits
from headgate.sdk.codec import decode, decoder_of
from headgate.sdk.outcomes import delay_in_ms
from headgate.sdk.worker.execution import attempt_async, attempt_sync
from headgate.testing import ReportRecorder, fake_job, request_cancel


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def handler(body: Any) -> Any:
    async def run(job: Job) -> Any:
        return body(job)

    def run_plain(job: Job) -> Any:
        return body(job)

    app = Headgate("127.0.0.1:1")
    return app.register("a", run), app.register("b", run_plain)


async def outcomes(body: Any) -> list[Any]:
    loop_task, thread_task = handler(body)
    return [await attempt_async(loop_task, fake_job(), None), attempt_sync(thread_task, fake_job())]


def raising(error: BaseException) -> Any:
    def body(job: Job) -> None:
        raise error

    return body


@pytest.mark.req("W9")
async def test_a_value_is_a_result_in_json_and_none_is_an_empty_one() -> None:
    assert await outcomes(lambda job: {"sent": True}) == [b'{"sent":true}'] * 2
    assert await outcomes(lambda job: None) == [b""] * 2


@pytest.mark.req("W9", "W11", "W12", "W13")
async def test_the_named_verdicts_become_their_outcomes() -> None:
    for one in await outcomes(raising(Nack(delay=1.5, reason="limited"))):
        assert (one.nack.delay_ms, one.nack.reason) == (1500, "limited")
    for one in await outcomes(raising(Snooze(timedelta(minutes=1)))):
        assert one.snooze.delay_ms == 60_000
    for one in await outcomes(raising(Abandon())):
        assert one.WhichOneof("kind") == "abandon"
    for one in await outcomes(raising(Fail("no such user", permanent=True))):
        assert (one.failed.type, one.failed.message, one.failed.permanent) == ("Fail", "no such user", True)
        assert one.failed.traceback == ""


@pytest.mark.req("W22")
@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_whatever_else_is_raised_fails_the_attempt_and_nothing_more(error: BaseException) -> None:
    for one in await outcomes(raising(error)):
        assert one.failed.type.endswith(type(error).__name__)
        assert "raise error" in one.failed.traceback
        assert not one.failed.permanent


async def test_error_texts_are_made_storable_and_cut_to_their_limits() -> None:
    for one in await outcomes(raising(ValueError("\x00" + "x" * 20_000))):
        assert len(one.failed.message) <= limits.ERROR_MESSAGE_MAX_CHARS
        assert "\x00" not in one.failed.message
    for one in await outcomes(raising(Unprintable())):
        assert "cannot be made" in one.failed.message


async def test_a_result_that_cannot_be_encoded_fails_for_good() -> None:
    """The handler has done its work: another attempt would do it once more, and end the same way."""
    for one in await outcomes(lambda job: {"a": object()}):
        assert one.failed.type == "PayloadError"
        assert "result.a" in one.failed.message
        assert one.failed.permanent
    for one in await outcomes(lambda job: "x" * (limits.RESULT_MAX_BYTES + 1)):
        assert one.failed.type == "TooLarge"


@pytest.mark.parametrize("value", [b"\x00\xff", bytearray(b"a"), {"file": [b"a"]}, [(b"a",)]])
async def test_bytes_are_refused_as_a_result_where_they_would_come_back_as_text(value: Any) -> None:
    for one in await outcomes(lambda job: value):  # which has no annotation
        assert (one.failed.type, one.failed.permanent) == ("PayloadError", True)
        assert "result" in one.failed.message
        assert "base64" in one.failed.message
        assert "-> bytes" in one.failed.message


async def test_bytes_that_are_announced_come_back_as_bytes() -> None:
    def download() -> bytes:
        return b"\x00\xff"

    def parts() -> dict[str, bytes]:
        return {"head": b"\x00", "tail": b"\xff"}

    app = Headgate("127.0.0.1:1")
    for function in (download, parts):
        task = app.register(function.__name__, function)
        stored = attempt_sync(task, fake_job(b"{}"))
        assert isinstance(stored, bytes)
        assert decode(stored, decoder_of(task.arguments.returns), what="result") == function()


async def test_a_payload_that_does_not_fit_fails_for_good_and_names_the_field() -> None:
    async def send(to: str, copies: list[int]) -> None: ...

    task = Headgate("127.0.0.1:1").register("a", send)
    for payload, field in (
        (b'{"to":1,"copies":[]}', "send.to"),
        (b'{"to":"a","copies":[1,"x"]}', "send.copies[1]"),
        (b'{"to":"a"}', "`copies`"),
        (b"not json", "send"),
    ):
        one: Any = await attempt_async(task, fake_job(payload), None)
        assert (one.failed.type, one.failed.permanent) == ("PayloadError", True)
        assert field in one.failed.message


async def test_a_payload_that_does_not_fit_is_retried_if_the_handler_wants_that() -> None:
    async def send(to: str) -> None: ...

    task = Headgate("127.0.0.1:1").register("a", send, bad_payload="retry")
    one: Any = await attempt_async(task, fake_job(b'{"to":1}'), None)
    assert not one.failed.permanent
    with pytest.raises(InvalidInput, match="bad_payload"):
        Headgate("127.0.0.1:1").register("b", send, bad_payload="never")  # type: ignore[arg-type]


async def test_an_error_in_a_payload_that_the_handler_itself_makes_is_retried_as_any_other() -> None:
    def send(to: str) -> None: ...

    app = Headgate("127.0.0.1:1")
    other = app.register("other", send)
    for one in await outcomes(lambda job: other.arguments.payload_of_call((1,), {})):
        assert one.failed.type.endswith("PayloadError")
        assert not one.failed.permanent


def test_a_plain_handler_that_returns_a_coroutine_fails_with_a_reason() -> None:
    async def inner() -> None: ...

    one: Any = attempt_sync(Headgate("127.0.0.1:1").register("a", lambda job: inner()), fake_job())
    assert "awaitable" in one.failed.message


@pytest.mark.req("K14", "W12")
def test_a_negative_delay_is_none_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert Nack(delay=-3).delay_ms == 0
    assert "negative" in caplog.text


@pytest.mark.parametrize("delay", ["3", None, True, float("nan"), float("inf"), timedelta(days=9000), 1e12])
def test_a_delay_that_is_none_is_refused(delay: Any) -> None:
    with pytest.raises(InvalidInput, match="delay"):
        delay_in_ms(delay)


def test_a_cancelled_job_answers_so() -> None:
    def patient(job: Job) -> None:
        job.raise_if_cancelled()
        request_cancel(job)
        assert job.cancelled.is_set()
        assert job.cancelled.wait(0)
        job.raise_if_cancelled()

    one: Any = attempt_sync(Headgate("127.0.0.1:1").register("a", patient), fake_job())
    assert one.failed.type == "Cancelled"


async def test_a_token_can_be_awaited() -> None:
    job = fake_job()
    waiting = asyncio.create_task(job.cancelled.wait_async())
    await asyncio.sleep(0)
    assert not waiting.done()
    request_cancel(job)
    await asyncio.wait_for(waiting, 60)
    await job.cancelled.wait_async()


async def test_progress_is_done_when_called_and_may_be_awaited() -> None:
    recorder = ReportRecorder()
    job = fake_job(recorder=recorder)
    job.progress(1, 3, "one")
    assert recorder.progress[-1] == (1, 3, "one")
    await job.progress(2, 3)
    assert recorder.progress[-1] == (2, 3, "")
    for bad in [(-1, 0), (4, 3), (True, 3), (1.5, 3)]:
        with pytest.raises(InvalidInput):
            job.progress(*bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="seconds"):
        job.extend(0)
