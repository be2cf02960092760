"""The worker's protocol in rare orders: old epochs, locked and refused outcomes, second drains, full frames, limits."""

from __future__ import annotations

import pytest

from headgate.sdk.outcomes import failure
from headgate.sdk.worker import ledger
from headgate.sdk.worker.beats import RESEND_SECONDS, silence_limit
from headgate.sdk.worker.held_job import HeldJob
from headgate.sdk.worker.outbox import FRAME_BYTES, Outbox
from headgate.sdk.worker.protocol import DRAIN_SECONDS, READY_MAX, RESEND_SOON_SECONDS
from headgate.sdk.worker.stop_sequence import FLUSH_SECONDS, HURRIED_FLUSH_SECONDS, UNWIND_SECONDS
from headgate.sdk.worker.stuck_slots import STUCK_SECONDS
from headgate.sdk.worker.timers import Timers
from headgate.wire import jobs_pb2, worker_pb2
from tests.support.worker_protocol import BEAT_SECONDS, Driver, delivery, held, ids_of, make_protocol, raw_ids

STALE = worker_pb2.Held(ids=raw_ids(1), epochs=[3])


def connected(**options: int | float | None) -> Driver:
    driver = Driver(make_protocol(**options))  # type: ignore[arg-type]
    driver.connect()
    driver.send()
    return driver


def failed_with(traceback: str) -> jobs_pb2.Outcome:
    return jobs_pb2.Outcome(failed=jobs_pb2.Failed(type="E", traceback=traceback))


def locked(index: int) -> jobs_pb2.Receipt:
    return jobs_pb2.Receipt(index=index, code=jobs_pb2.RECEIPT_LOCKED)


# --- credit ----------------------------------------------------------------------------------------------------------


def test_more_credit_than_one_frame_may_have_is_asked_for_in_several() -> None:
    driver = Driver(make_protocol(slots=READY_MAX + 5))
    driver.connect()
    assert [frame.ready.count for frame in driver.send()] == [READY_MAX, 5]


def test_no_jobs_are_asked_for_while_too_many_outcomes_are_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "UNACKNOWLEDGED_MAX", 2)
    driver = connected(slots=3)
    one, two, _ = driver.deliver(*raw_ids(3))
    driver.finish(one, two)
    (frame,) = driver.send()
    assert (len(frame.outcomes.ids), frame.HasField("ready")) == (2, False)
    driver.acknowledge(frame.outcomes.seq)
    assert [frame.ready.count for frame in driver.send()] == [2]


def test_the_lease_of_a_worker_is_in_its_credit_and_makes_its_beats_more_frequent() -> None:
    driver = Driver(make_protocol(lease_seconds=9))
    driver.connect()
    assert [frame.ready.lease_seconds for frame in driver.send()] == [9]
    driver.pass_time(3.0)  # a third of the lease, and not the interval of the server
    assert [frame.HasField("beat") for frame in driver.send()] == [True]
    assert BEAT_SECONDS > 3


def test_reading_ahead_goes_by_the_time_of_handlers_and_not_by_what_waits_in_front_of_them() -> None:
    driver = connected(slots=1, prefetch=None, slots_queue=100)
    for job in driver.deliver(*raw_ids(20)):
        driver.now += 0.01
        job.run_seconds = 0.001
        driver.finish(job)
    assert sum(frame.ready.count for frame in driver.send()) > 1


# --- old epochs ------------------------------------------------------------------------------------------------------


def test_what_the_server_says_of_an_older_run_does_not_touch_the_newer_one() -> None:
    driver = connected()
    (job,) = driver.deliver(*raw_ids(1), epoch=4)
    assert driver.receive(lost=STALE).stop == []
    assert driver.receive(cancel=STALE).stop == []
    assert not job.cancel_requested
    assert list(driver.protocol.ledger.held.values()) == [job]


def test_the_receipt_of_an_older_run_does_not_end_the_lease_of_the_newer_one() -> None:
    driver = connected()
    (old,) = driver.deliver(*raw_ids(1), epoch=1)
    driver.finish(old)
    (sent,) = driver.outcomes()
    (new,) = driver.deliver(*raw_ids(1), epoch=2)
    driver.acknowledge(sent.seq)
    assert list(driver.protocol.ledger.held.values()) == [new]


def test_a_repeated_cancellation_stops_a_handler_once() -> None:
    driver = connected()
    (job,) = driver.deliver(*raw_ids(1))
    assert driver.receive(cancel=held(job)).stop == [job]
    assert driver.receive(cancel=held(job)).stop == []


def test_progress_and_extensions_of_a_job_that_is_lost_are_not_sent() -> None:
    driver = connected()
    (job,) = driver.deliver(*raw_ids(1))
    driver.protocol.beats.add_progress(job, (1, 2, ""), driver.now)
    driver.protocol.beats.add_extension(job, 60)
    driver.receive(lost=held(job))
    (frame,) = driver.send()
    assert (list(frame.beat.progress), list(frame.beat.extensions)) == ([], [])


# --- outcomes --------------------------------------------------------------------------------------------------------


def test_receipts_are_counted_once_by_their_code() -> None:
    driver = connected()
    one, two = driver.deliver(*raw_ids(2))
    driver.finish(one, two)
    (sent,) = driver.outcomes()
    driver.acknowledge(sent.seq, jobs_pb2.Receipt(index=1, code=jobs_pb2.RECEIPT_STALE))
    assert driver.protocol.receipts == {"applied": 1, "stale": 1}


def test_a_refused_failure_is_not_replaced_by_another_one() -> None:
    """That would be refused as well, and so on for as long as the worker runs."""
    driver = connected()
    (job,) = driver.deliver(*raw_ids(1))
    driver.finish(job, outcome=failure("ValueError", "no"))
    (sent,) = driver.outcomes()
    driver.acknowledge(sent.seq, jobs_pb2.Receipt(index=0, code=jobs_pb2.RECEIPT_INVALID))
    assert driver.outcomes() == []
    assert not driver.protocol.ledger.held


def test_locked_outcomes_do_not_wait_for_those_that_are_locked_later() -> None:
    driver = connected()
    one, two = driver.deliver(*raw_ids(2))
    for job in (one, two):
        driver.finish(job)
        (sent,) = driver.outcomes()
        driver.acknowledge(sent.seq, locked(0))
        driver.pass_time(RESEND_SOON_SECONDS / 2)
    (again,) = driver.outcomes()
    assert ids_of(again) == [one.raw_id, two.raw_id]


def test_a_locked_outcome_is_among_those_that_are_reported_at_the_end() -> None:
    driver = connected()
    (job,) = driver.deliver(*raw_ids(1))
    driver.finish(job, outcome=b"r")
    (sent,) = driver.outcomes()
    driver.acknowledge(sent.seq, locked(0))
    assert [one.id for one in driver.protocol.ledger.outbox.all_unacknowledged()] == [job.raw_id]


def test_a_refusal_of_no_frame_in_particular_sends_again_what_was_sent_before_it() -> None:
    driver = connected()
    (job,) = driver.deliver(*raw_ids(1))
    driver.finish(job)
    (sent,) = driver.outcomes()
    driver.receive(error=jobs_pb2.Error(code="overloaded", retry_after_ms=1_000))
    driver.pass_time(1.0)
    assert driver.outcomes() == [sent]


def test_an_unanswered_frame_is_sent_again_once_in_a_while_and_not_at_every_look() -> None:
    outbox = Outbox()
    outbox.add(connected().deliver(*raw_ids(1))[0], b"")
    assert outbox.fill(worker_pb2.Outcomes(), now=0.0)
    for now, again in ((10.0, False), (11.0, True), (12.0, False), (21.0, False), (22.0, True)):
        outbox.resend_sent_before(now - RESEND_SECONDS)
        assert outbox.fill(worker_pb2.Outcomes(), now=now) is again


def test_a_frame_is_not_sent_twice_for_two_reasons() -> None:
    outbox = Outbox()
    driver = connected()
    outbox.add(driver.deliver(*raw_ids(1))[0], b"")
    first, again = worker_pb2.Outcomes(), worker_pb2.Outcomes()
    assert outbox.fill(first, now=0.0)
    outbox.new_stream()
    outbox.resend(first.seq)
    assert outbox.fill(again, now=1.0)
    assert again == first
    assert not outbox.fill(worker_pb2.Outcomes(), now=1.0)


def test_a_result_is_sent_whichever_job_of_the_frame_has_one() -> None:
    driver = connected()
    one, two = driver.deliver(*raw_ids(2))
    driver.finish(one, outcome=b"")
    driver.finish(two, outcome=b"r")
    (sent,) = driver.outcomes()
    assert list(sent.results) == [b"", b"r"]


@pytest.mark.parametrize("failed", [False, True])
def test_a_frame_ends_with_the_outcome_that_makes_it_large(failed: bool) -> None:
    driver = connected()
    large = "x" * (FRAME_BYTES // 2)
    for job in driver.deliver(*raw_ids(3)):
        driver.finish(job, outcome=failed_with(large) if failed else large.encode())
    assert [len(ids_of(sent)) for sent in driver.outcomes()] == [2, 1]


def test_only_an_error_of_its_own_is_noted_of_a_lost_job() -> None:
    driver = connected()
    noted = []
    for job in driver.deliver(*raw_ids(2)):
        driver.receive(lost=held(job))
        driver.protocol.ledger.finish(job, failure("Cancelled" if not noted else "ValueError", ""), driver.now)
        noted.append([one.raw_id for one, _ in driver.protocol.ledger.unreported])
    assert noted == [[], [raw_ids(2)[1]]]


# --- time ------------------------------------------------------------------------------------------------------------


def test_a_rule_of_no_limit_replaces_the_time_limit_of_a_handler() -> None:
    driver = connected(time_limit=10.0)
    jobs = delivery(*raw_ids(1))
    jobs.time_limits_ms.append(0)
    (job,) = driver.receive(jobs=jobs).start
    job.began_at = driver.now
    driver.pass_time(15.0)
    assert driver.stopped == []


def test_a_handler_that_is_out_of_time_already_is_not_stopped_again_at_its_deadline() -> None:
    driver = connected(time_limit=1.0)
    (job,) = driver.deliver(*raw_ids(1), deadline_ms=2_000)
    job.began_at = driver.now
    driver.pass_time(2.0)
    assert driver.stopped == [job]
    assert not job.past_deadline


def test_timers_stay_in_order_when_cancelled_ones_are_removed() -> None:
    timers, called = Timers(), list[int]()

    def call(number: int, _now: float) -> None:
        called.append(number)

    for number in range(300):
        timers.set(number, float(number * 7_919 % 1_000), call, number)
    for number in range(0, 300, 3):
        timers.cancel(number)
        timers.cancel(number + 1)
    timers.advance(1_000.0)
    assert called == sorted(range(2, 300, 3), key=lambda number: number * 7_919 % 1_000)


def test_a_deadline_of_a_job_that_is_handed_back_at_once_leaves_no_timer() -> None:
    driver = connected()
    driver.deliver(*raw_ids(1), topic="unknown", deadline_ms=60_000)
    assert not driver.protocol.ledger.timed
    assert [one.WhichOneof("kind") for sent in driver.outcomes() for one in sent.others] == ["abandon"]


@pytest.mark.parametrize(("beat", "limit"), [(20.0, 20 + 20 / 3), (3.0, 4.0), (1.0, 2.0), (0.5, 1.0)])
def test_a_server_may_be_silent_for_a_beat_and_a_third_but_never_for_more_than_two(beat: float, limit: float) -> None:
    assert silence_limit(beat) == pytest.approx(limit)


def test_slots_are_stuck_when_the_newest_handler_of_all_has_run_for_long(caplog: pytest.LogCaptureFixture) -> None:
    driver = connected(slots=2)
    one, two = driver.deliver(*raw_ids(2))
    one.began_at = driver.now
    driver.pass_time(STUCK_SECONDS - 100)
    two.began_at = driver.now  # until now it has waited in its slot
    driver.pass_time(STUCK_SECONDS - 10)
    assert "all_slots_stuck" not in caplog.text
    driver.pass_time(20)
    assert caplog.text.count("all_slots_stuck") == 1


# --- drain and stop --------------------------------------------------------------------------------------------------


def drained(driver: Driver, grace_seconds: int = 0) -> None:
    driver.receive(drain=worker_pb2.Drain(grace_seconds=grace_seconds))


def running_one(driver: Driver) -> HeldJob:
    (job,) = driver.deliver(*raw_ids(1))
    job.began_at = driver.now
    return job


def test_a_draining_server_says_how_long_it_waits() -> None:
    driver = connected()
    running_one(driver)
    drained(driver, 5)
    driver.pass_time(4.9)
    assert not driver.protocol.may_end_stream
    driver.pass_time(0.1)
    assert driver.protocol.may_end_stream


def test_a_draining_server_is_asked_for_no_more_jobs() -> None:
    driver = connected(slots=2)
    driver.finish(running_one(driver))
    drained(driver)
    (frame,) = driver.send()
    assert (frame.HasField("outcomes"), frame.HasField("ready")) == (True, False)


@pytest.mark.parametrize("stayed", [DRAIN_SECONDS, 10.0])
def test_a_second_server_that_drains_has_its_whole_time(stayed: float) -> None:
    """Whether the first one was left when its time was over, or before that."""
    driver = connected()
    running_one(driver)
    drained(driver)
    driver.pass_time(stayed)
    driver.disconnect()
    driver.connect()
    driver.pass_time(DRAIN_SECONDS - stayed + 1)  # a timer of the first one would end now
    drained(driver)
    assert not driver.protocol.may_end_stream


def test_a_worker_with_credit_out_does_not_end_before_the_server_has_answered() -> None:
    driver = connected()
    driver.protocol.stop_sequence.begin(3.0, driver.now)
    driver.act()
    assert not driver.protocol.actions.ended
    assert [frame.HasField("quiet") for frame in driver.send()] == [True]
    assert not driver.protocol.actions.ended
    driver.receive(quieted=worker_pb2.Quieted())
    assert driver.protocol.actions.ended


def test_of_a_handler_that_was_cut_short_only_a_success_is_sent() -> None:
    driver = connected()
    one, two = driver.deliver(*raw_ids(2))
    driver.protocol.stop_sequence.begin(0.0, driver.now)
    driver.pass_time(0.0)
    driver.act()
    driver.finish(one, outcome=failure("Cancelled", "cut short"))
    driver.finish(two, outcome=b"r")
    driver.pass_time(UNWIND_SECONDS)
    kinds = {
        raw: kind
        for sent in driver.outcomes()
        for raw, kind in [
            *((raw, "completed") for raw in sent.ids),
            *((one.id, one.WhichOneof("kind")) for one in sent.others),
        ]
    }
    assert kinds == {one.raw_id: "abandon", two.raw_id: "completed"}


def test_a_hurried_stop_waits_less_for_the_last_receipts() -> None:
    driver = connected()
    driver.finish(running_one(driver))
    driver.protocol.stop_sequence.hurry(driver.now)
    driver.act()
    driver.outcomes()
    driver.pass_time(HURRIED_FLUSH_SECONDS)
    assert driver.reports == 1
    assert HURRIED_FLUSH_SECONDS < FLUSH_SECONDS
