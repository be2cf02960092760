"""What a submit sends and how it sums its answers up, without a server: pages, options in SQL, salts, the window."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from headgate import Encryption, InvalidInput, SubmitManyError, Unique
from headgate.domain.envelope import read_envelope
from headgate.domain.ids import JobId
from headgate.domain.timestamps import unix_us
from headgate.sdk.addresses import addresses_of
from headgate.sdk.client.capacity import SubmitCapacity
from headgate.sdk.client.frames import Answer, PendingSubmit, SentFrame, next_frame
from headgate.sdk.client.producer import LEAST_PAUSE_SECONDS, WINDOW, Producer
from headgate.sdk.connection import PAGES_IN_FLIGHT
from headgate.sdk.encryption import Purpose
from headgate.sdk.errors import OutboxFull, SubmitRefused
from headgate.sdk.ids import new_id_maker
from headgate.sdk.options import PLAIN, prepared
from headgate.sdk.submitting import check_many, submit_many, submit_many_blocking
from headgate.sdk.transactions import _as_json
from headgate.wire import jobs_pb2
from headgate.wire import producer_pb2 as pb
from tests.support.dispatch_waits import soon

IDS = [new_id_maker().next_id() for _ in range(200)]
DUE = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


# --- options in SQL --------------------------------------------------------------------------------------------------


def test_every_option_of_a_submit_is_among_those_of_a_transaction() -> None:
    options = prepared(
        priority=0,
        run_at=DUE,
        deadline=DUE + timedelta(hours=1),
        max_attempts=3,
        tags=["a"],
        headers={"h": "v"},
        limit_key="customer",
        unique=Unique(key="u", on_conflict="reschedule", debounce_max=timedelta(seconds=5)),
        depends_on=[IDS[0]],
        needs="ended",
        on_parent_failure="block",
        batch=IDS[1],
    )
    assert json.loads(_as_json(options, "acme")) == {
        "tenant": "acme",
        "priority": 0,
        "run_at": DUE.isoformat(),
        "deadline": (DUE + timedelta(hours=1)).isoformat(),
        "max_attempts": 3,
        "tags": ["a"],
        "headers": {"h": "v"},
        "limit_key": "customer",
        "unique_key": "u",
        "on_conflict": "reschedule",
        "debounce_max": "5000 ms",
        "depends_on": [str(IDS[0])],
        "needs": "ended",
        "on_parent_failure": "block",
        "batch": str(IDS[1]),
    }


def test_spans_of_a_submit_are_spans_in_a_transaction() -> None:
    options = prepared(delay=1.5, deadline=timedelta(seconds=9), key="k", key_window=timedelta(minutes=1))
    found = json.loads(_as_json(options, ""))
    assert (found["delay"], found["deadline_in"], found["key_window"]) == ("1500 ms", "9000 ms", "60000 ms")


def test_a_due_time_of_one_submit_replaces_the_one_of_its_task() -> None:
    delayed, timed = prepared(delay=60), prepared(run_at=DUE)
    at = delayed.over({"run_at": DUE}).new_job("mail", b"", b"")
    later = timed.over({"delay": 60}).new_job("mail", b"", b"")
    assert (at.run_at_us, at.delay_ms) == (unix_us(DUE), 0)
    assert (later.run_at_us, later.delay_ms) == (0, 60_000)
    with pytest.raises(InvalidInput, match="together with delay"):
        delayed.over({"run_at": DUE, "delay": 1})


def test_many_jobs_do_not_share_a_name() -> None:
    for options in (prepared(key="k"), prepared(id=IDS[0]), prepared(unique="u")):
        with pytest.raises(InvalidInput, match="names a single job"):
            check_many(options)


# --- salts -----------------------------------------------------------------------------------------------------------


def test_two_bodies_under_one_name_never_share_a_salt() -> None:
    """A key and a nonce are made of the salt: two texts under both would be readable from one another."""
    keys = Encryption({"k": Encryption.new_key()}, write="k")
    sealed = [keys.seal(body, Purpose.PAYLOAD, same=b"key a") for body in (b"one", b"two", b"one")]
    salts = [envelope.salt for body in sealed if (envelope := read_envelope(body)) is not None]
    assert salts[0] == salts[2]
    assert salts[0] != salts[1]


def test_a_job_with_an_id_of_its_own_is_the_same_bytes_when_it_is_sent_again() -> None:
    keys, raw = Encryption({"k": Encryption.new_key()}, write="k"), IDS[0].bytes
    first, again = (keys.seal_payloads([b"{}"], [raw], prepared(id=IDS[0])) for _ in range(2))
    assert first == again
    assert keys.seal_payloads([b"{}"], [raw], PLAIN) != keys.seal_payloads([b"{}"], [raw], PLAIN)


def test_no_text_is_encrypted_as_no_text() -> None:
    keys = Encryption({"k": Encryption.new_key()}, write="k")
    assert keys.seal_text("", IDS[0].bytes, limit=1_000) == ""


# --- many jobs -------------------------------------------------------------------------------------------------------


class Pages:
    """A connection whose pages have one job each; `answers` are given when they are awaited."""

    tracing = box = encryption = None

    def __init__(self, count: int, answers: dict[int, Answer] | None = None) -> None:
        self.count, self.answers = count, answers or {}
        self.put_count = self.most = self._waiting = 0

    def pages(self, payloads: object) -> Any:
        return (([IDS[at]], [b""]) for at in range(self.count))

    def _answer(self) -> Answer:
        self.put_count += 1
        self._waiting += 1
        self.most = max(self.most, self._waiting)
        return self.answers.get(self.put_count - 1, {})

    async def put(self, *_: object) -> Any:
        answer = self._answer()

        async def answered() -> Answer:
            self._waiting -= 1
            return answer

        return answered()

    def put_blocking(self, *_: object) -> Any:
        answer = self._answer()

        def result() -> Answer:
            self._waiting -= 1
            return answer

        return SimpleNamespace(result=result)


def submitted(connection: Any, *, blocking: bool) -> list[tuple[JobId, bool]]:
    if blocking:
        handles: Any = submit_many_blocking(connection, "mail", [], PLAIN, returns=None)
    else:
        handles = asyncio.run(submit_many(connection, "mail", [], PLAIN, returns=None))  # type: ignore[arg-type]
    return [(one.id, one.created) for one in handles]


@pytest.mark.parametrize("blocking", [False, True])
def test_a_bounded_number_of_pages_waits_for_its_answer(blocking: bool) -> None:
    connection = Pages(5 * PAGES_IN_FLIGHT)
    assert submitted(connection, blocking=blocking) == [(one, True) for one in IDS[: 5 * PAGES_IN_FLIGHT]]
    assert connection.most == PAGES_IN_FLIGHT


@pytest.mark.parametrize("blocking", [False, True])
def test_the_first_page_that_is_refused_is_the_last_one_that_is_made(blocking: bool) -> None:
    refused = SubmitRefused("quota_exceeded", "no")
    connection = Pages(10 * PAGES_IN_FLIGHT, {0: refused})
    with pytest.raises(SubmitManyError):
        submitted(connection, blocking=blocking)
    assert connection.put_count == PAGES_IN_FLIGHT
    with pytest.raises(SubmitRefused):
        submitted(Pages(2, {0: refused, 1: refused}), blocking=blocking)


@pytest.mark.parametrize("blocking", [False, True])
def test_a_job_that_existed_before_is_the_one_of_the_handle(blocking: bool) -> None:
    older = pb.SubmitReceipt(index=0, id=IDS[9].bytes, code=pb.SUBMIT_DUPLICATE)
    found = submitted(Pages(2, {1: {0: older}}), blocking=blocking)
    assert found == [(IDS[0], True), (IDS[9], False)]


# --- the window ------------------------------------------------------------------------------------------------------


def producer_with(window: int) -> tuple[Producer, Mock]:
    loop = Mock(time=lambda: 0.0)
    capacity = Mock()
    made = Producer(Mock(loop=loop), addresses_of("127.0.0.1:1"), token="", capacity=capacity)
    made._window = window
    return made, loop


def sent(producer: Producer, seq: int, *, lost: bool = False, waits: bool = True) -> PendingSubmit:
    options = prepared() if waits else prepared(when_busy="raise")
    one = PendingSubmit(
        *("mail", [IDS[seq].bytes], [b""]), options, deadline=9.0, new_id=True, future=Future(), size=1, lost=lost
    )
    producer._in_flight[seq] = SentFrame([one], 0.0)
    return one


def refused(producer: Producer, seq: int, **error: Any) -> None:
    producer._take(pb.ProducerReply(seq=seq, error=jobs_pb2.Error(**error)))


def test_an_overloaded_server_gets_fewer_frames_at_once_and_never_none() -> None:
    producer, _ = producer_with(2)
    for seq in range(1, 4):
        sent(producer, seq)
        refused(producer, seq, code="overloaded", retry_after_ms=100)
        producer._go_on()
    assert producer._window == 1
    for seq in range(10, 10 + 2 * WINDOW):
        sent(producer, seq)
        producer._take(pb.ProducerReply(seq=seq))
    assert producer._window == WINDOW


def test_clients_of_an_overloaded_server_come_back_at_different_times_and_never_too_early() -> None:
    producer, loop = producer_with(WINDOW)
    for seq in range(1, 20):
        sent(producer, seq)
        refused(producer, seq, code="overloaded", retry_after_ms=1_000 if seq > 1 else 0)
    first, *pauses = [call.args[0] for call in loop.call_later.call_args_list]
    assert LEAST_PAUSE_SECONDS <= first <= 1.5 * LEAST_PAUSE_SECONDS
    assert all(1.0 <= pause <= 1.5 for pause in pauses)
    assert len(set(pauses)) > 1


def test_a_refusal_does_not_say_that_an_earlier_try_was_not_stored() -> None:
    producer, _ = producer_with(WINDOW)
    one, other = sent(producer, 1, lost=True, waits=False), sent(producer, 2, waits=False)
    refused(producer, 1, code="overloaded", retry_after_ms=100)
    refused(producer, 2, code="overloaded", retry_after_ms=100)
    assert (one.sent, one.gone) == (True, False)
    assert (other.sent, other.gone) == (False, True)


def test_why_the_server_refused_is_said_also_when_the_connection_broke_after_that() -> None:
    producer, _ = producer_with(WINDOW)
    one = sent(producer, 1)
    refused(producer, 1, code="store_busy", message="too many statements wait")
    producer._in_flight[2] = SentFrame([producer._unsent.popleft()], 0.0)
    producer._resend_later()
    one.sent = True
    assert "(too many statements wait)" in str(producer._too_late(one))


def test_capacity_is_given_back_once() -> None:
    producer, _ = producer_with(WINDOW)
    one = sent(producer, 1)
    producer._finish([one])
    producer._finish([one])
    given: Any = producer.capacity.give
    assert [call.args for call in given.call_args_list] == [(1, 1), (0, 0)]


def test_what_was_lost_goes_out_again_in_the_order_of_the_calls() -> None:
    producer, _ = producer_with(WINDOW)
    for seq in (1, 2, 3):
        sent(producer, seq).order = seq
    producer._resend_later()
    assert [one.order for one in producer._unsent] == [1, 2, 3]
    assert all(one.lost and not one.new_id for one in producer._unsent)


# --- frames ----------------------------------------------------------------------------------------------------------


def pending(at: int, *, new_id: bool) -> PendingSubmit:
    return PendingSubmit(
        *("mail", [IDS[at].bytes], [b"{}"]), PLAIN, deadline=9.0, new_id=new_id, future=Future(), size=2
    )


@pytest.mark.parametrize("first_is_new", [False, True])
def test_a_job_that_may_be_stored_already_is_not_sent_as_a_new_one_beside_new_ones(first_is_new: bool) -> None:
    """The server does not look for a job whose id is new: the one that exists would be a conflict."""
    made = next_frame(deque([pending(1, new_id=first_is_new), pending(2, new_id=not first_is_new)]), seq=1, now=0.0)
    assert made is not None
    frame, _ = made
    sent = {**dict.fromkeys(frame.plain.ids, frame.plain.new_id), **{job.id: job.new_id for job in frame.jobs}}
    assert sent == {IDS[1].bytes: first_is_new, IDS[2].bytes: not first_is_new}


# --- capacity --------------------------------------------------------------------------------------------------------


async def test_capacity_is_given_out_in_the_order_of_the_calls() -> None:
    capacity = SubmitCapacity(jobs=3, size=100)
    assert capacity.take(2, 10)
    large = asyncio.create_task(capacity.wait(3, 1, seconds=30))
    await soon(lambda: len(capacity._queue) == 1, "it waits")
    assert not capacity.take(1, 1), "an earlier caller waits, though this one would fit"
    small = asyncio.create_task(capacity.wait(1, 1, seconds=30))
    await soon(lambda: len(capacity._queue) == 2, "the next one waits, too")
    large.cancel()
    await small  # the next one fits when the first one has left
    with pytest.raises(asyncio.CancelledError):
        await large
    capacity.give(2, 10)
    assert (capacity._jobs, capacity._size) == (2, 99)


async def test_capacity_that_was_granted_to_a_caller_that_is_gone_is_given_back() -> None:
    capacity = SubmitCapacity(jobs=2, size=100)
    assert capacity.take(2, 10)
    waiting = asyncio.create_task(capacity.wait(2, 7, seconds=30))
    await soon(lambda: capacity._queue, "it waits")
    capacity.give(2, 10)  # granted, and cancelled before it could know
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (capacity._jobs, capacity._size) == (2, 100)


def test_capacity_in_bytes_ends_with_the_last_byte_and_a_large_body_passes_before() -> None:
    capacity = SubmitCapacity(jobs=9, size=10)
    assert capacity.take(1, 9)
    assert capacity.take(1, 1_000), "there was a byte left"
    assert not capacity.take(1, 0)
    capacity.give(1, 1_000)
    capacity.take(1, 1)
    assert not capacity.take(1, 0), "none is left"
    with pytest.raises(OutboxFull):
        capacity.wait_blocking(1, 0, seconds=0.001)
    assert not capacity._queue
    with pytest.raises(OutboxFull):
        capacity.wait_blocking(10, 0, seconds=30)
