"""The worker's protocol, frame by frame: no server, no handlers, no clock."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import pytest

from headgate.sdk import worker
from headgate.sdk.outcomes import failure
from headgate.sdk.worker import beats
from headgate.sdk.worker import ledger as ledger_module
from headgate.sdk.worker.beats import PROGRESS_SECONDS, RESEND_SECONDS
from headgate.sdk.worker.held_job import STARTED, HeldJob
from headgate.sdk.worker.protocol import DRAIN_SECONDS, GATHER_SECONDS, RESEND_SOON_SECONDS
from headgate.sdk.worker.stale_jobs import STALE_SECONDS
from headgate.sdk.worker.stop_sequence import FLUSH_SECONDS, UNWIND_SECONDS
from headgate.sdk.worker.time_limits import UNWIND_SECONDS as TIMED_OUT_UNWIND_SECONDS
from headgate.sdk.worker.timers import Timers
from headgate.wire import jobs_pb2, worker_pb2
from tests.support.worker_protocol import Driver, held, ids_of, make_protocol, raw_ids

PURE = [
    *("actions", "beats", "forced_outcomes", "held_job", "ledger", "outbox", "protocol", "read_ahead"),
    *("stale_jobs", "stop_sequence", "stuck_slots", "time_limits", "timers"),
]


def kinds(outcomes: worker_pb2.Outcomes) -> list[str | None]:
    return [other.WhichOneof("kind") for other in outcomes.others]


@pytest.mark.parametrize("name", PURE)
def test_the_protocol_imports_neither_io_nor_clocks(name: str) -> None:
    text = (Path(worker.__file__).parent / f"{name}.py").read_text()
    tree = ast.parse(text)
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    allowed = {"asyncio"} if name == "held_job" else set()  # for the type of the task that runs it
    forbidden = {"asyncio", "grpc", "random", "secrets", "socket", "threading", "time"} - allowed
    assert not {module.partition(".")[0] for module in imported} & forbidden
    assert not imported & {"headgate.sdk.rpc", "headgate.sdk.io_thread"}


# --- jobs that wait here ---------------------------------------------------------------------------------------------


def busy_reader(slots: int = 2, jobs: int = 6) -> tuple[Driver, list[HeldJob]]:
    """A worker that has read ahead: it holds more jobs than it has slots, all given to the slots' queue."""
    driver = Driver(make_protocol(slots=slots, prefetch=None, slots_queue=100))
    driver.connect()
    driver.protocol.ledger.asked = jobs + 10
    return driver, driver.deliver(*raw_ids(jobs))


def test_outcomes_wait_for_others_while_jobs_wait_here() -> None:
    driver, (first, second, *_) = busy_reader()
    driver.finish(first)
    assert not driver.protocol.may_send(driver.now)
    assert driver.send() == []
    driver.pass_time(GATHER_SECONDS / 2)
    driver.finish(second)
    assert driver.send() == []
    driver.pass_time(GATHER_SECONDS / 2)
    assert driver.protocol.may_send(driver.now)
    (outcomes,) = driver.outcomes()
    assert ids_of(outcomes) == [first.raw_id, second.raw_id]


def test_outcomes_do_not_wait_when_the_last_job_has_ended() -> None:
    driver, jobs = busy_reader()
    driver.finish(jobs[0])
    assert driver.send() == []
    driver.finish(*jobs[1:])
    (outcomes,) = driver.outcomes()
    assert ids_of(outcomes) == [job.raw_id for job in jobs]
    (again,) = driver.deliver(raw_ids(7)[-1])
    driver.finish(again)
    assert len(driver.outcomes()) == 1, "the timer of the first wait is over"


def test_outcomes_do_not_wait_where_a_slot_is_free() -> None:
    driver, (first, second) = busy_reader(jobs=2)
    for job in (first, second):
        driver.finish(job)
        assert len(driver.outcomes()) == 1


def test_outcomes_of_a_worker_that_stops_do_not_wait() -> None:
    driver, (first, *_) = busy_reader()
    driver.protocol.stop_sequence.begin(30.0, driver.now)
    driver.finish(first)
    (outcomes,) = driver.outcomes()
    assert first.raw_id in ids_of(outcomes)


def test_jobs_that_were_read_ahead_and_are_not_begun_in_time_go_back() -> None:
    driver, jobs = busy_reader()
    driver.unbegun = lambda: jobs[2:]
    driver.pass_time(STALE_SECONDS * 0.9)
    assert driver.outcomes() == []
    driver.pass_time(STALE_SECONDS * 0.2)
    (frame,) = driver.send()
    assert (ids_of(frame.outcomes), kinds(frame.outcomes)) == ([job.raw_id for job in jobs[2:]], ["abandon"] * 4)
    assert frame.HasField("quiet"), "they must not come back here by credit that is out"
    assert not frame.HasField("ready")
    assert [job.stage for job in jobs[:2]] == [STARTED, STARTED]
    assert driver.protocol.ledger.credit() == 0
    driver.pass_time(10 * STALE_SECONDS)
    assert driver.outcomes() == []


def test_jobs_that_are_begun_one_after_the_other_stay() -> None:
    driver, jobs = busy_reader()
    driver.unbegun = lambda: pytest.fail("taken back")
    more = iter(raw_ids(30)[6:])
    for _ in range(20):
        driver.pass_time(STALE_SECONDS * 0.2)  # four wait: each for less than the bound
        driver.finish(jobs.pop(0))
        driver.send()
        jobs += driver.deliver(next(more))


def test_jobs_of_a_prefetch_of_the_users_own_stay() -> None:
    driver = Driver(make_protocol(slots=2, prefetch=4, slots_queue=100))
    driver.connect()
    driver.send()
    driver.deliver(*raw_ids(6))
    driver.unbegun = lambda: pytest.fail("taken back")
    driver.pass_time(10 * STALE_SECONDS)


# --- credit and slots ------------------------------------------------------------------------------------------------


def test_a_stream_begins_with_topics_and_credit_for_every_free_slot() -> None:
    driver = Driver(make_protocol(slots=4))
    hello = driver.connect()
    assert (hello.worker_id, hello.incarnation, hello.resumed, list(hello.held.ids)) == ("w", 7, False, [])
    (frame,) = driver.send()
    assert (frame.ready.count, list(frame.ready.topics)) == (4, ["plain", "takes-job"])
    assert driver.send() == []


def test_outcome_and_credit_of_a_finished_job_travel_in_one_frame() -> None:
    driver = Driver(make_protocol(slots=2))
    driver.connect()
    driver.send()
    (one, _) = driver.deliver(*raw_ids(2))
    assert driver.send() == []
    driver.finish(one, outcome=b"1")
    (frame,) = driver.send()
    assert (list(frame.outcomes.ids), list(frame.outcomes.results)) == ([one.raw_id], [b"1"])
    assert (frame.ready.count, list(frame.ready.topics)) == (1, [])


def test_what_is_prefetched_waits_for_a_slot() -> None:
    driver = Driver(make_protocol(slots=1, prefetch=2))
    driver.connect()
    (frame,) = driver.send()
    assert frame.ready.count == 3
    (one,) = driver.deliver(*raw_ids(3))
    driver.finish(one)
    assert [job.raw_id for job in driver.started] == raw_ids(2)


def test_slots_that_keep_a_queue_are_given_all_that_is_delivered() -> None:
    driver = Driver(make_protocol(slots=1, prefetch=2, slots_queue=10))
    driver.connect()
    driver.send()
    assert len(driver.deliver(*raw_ids(3))) == 3


def test_a_frame_whose_arrays_are_not_parallel_is_refused_as_a_whole() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    with pytest.raises(ValueError, match="zip"):
        driver.receive(jobs=worker_pb2.Jobs(ids=raw_ids(2), epochs=[1], payloads=[b""], topic_names=["plain"]))
    assert not driver.protocol.ledger.held
    assert not driver.started


# --- outcomes --------------------------------------------------------------------------------------------------------


def test_a_job_is_held_until_its_outcome_is_acknowledged() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    (job,) = driver.deliver(*raw_ids(1))
    driver.finish(job)
    (outcomes,) = driver.outcomes()
    assert list(driver.protocol.hello(driver.now).hello.held.ids) == [job.raw_id]
    driver.acknowledge(outcomes.seq)
    assert list(driver.protocol.hello(driver.now).hello.held.ids) == []
    assert driver.protocol.receipts == {"applied": 1}


def test_a_reconnect_sends_again_what_is_unacknowledged_and_only_that() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    driver.send()
    one, two, three = driver.deliver(*raw_ids(3))
    driver.finish(one)
    (first,) = driver.outcomes()
    driver.finish(two)
    (second,) = driver.outcomes()
    driver.acknowledge(first.seq)
    driver.disconnect()
    hello = driver.connect()
    assert hello.resumed
    assert set(hello.held.ids) == {two.raw_id, three.raw_id}
    frames = driver.send()
    assert [frame.outcomes for frame in frames if frame.HasField("outcomes")] == [second]
    assert sum(frame.ready.count for frame in frames) == 3
    assert list(frames[0].ready.topics or frames[-1].ready.topics) == ["plain", "takes-job"]


def test_an_outcome_left_unanswered_is_sent_again_after_a_while() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    (job,) = driver.deliver(*raw_ids(1))
    driver.finish(job)
    (sent,) = driver.outcomes()
    driver.pass_time(RESEND_SECONDS / 2)
    driver.receive(beat_ack=worker_pb2.BeatAck())
    assert driver.outcomes() == []
    driver.pass_time(RESEND_SECONDS)
    assert driver.outcomes() == [sent]


def test_a_locked_outcome_stays_held_and_is_sent_again_under_a_new_seq() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    one, two = driver.deliver(*raw_ids(2))
    driver.finish(one, two, outcome=b"r")
    (sent,) = driver.outcomes()
    driver.acknowledge(sent.seq, jobs_pb2.Receipt(index=1, code=jobs_pb2.RECEIPT_LOCKED))
    assert list(driver.protocol.ledger.held) == [two.raw_id]
    assert driver.outcomes() == []
    driver.pass_time(RESEND_SOON_SECONDS)
    (again,) = driver.outcomes()
    assert (ids_of(again), list(again.results), again.seq != sent.seq) == ([two.raw_id], [b"r"], True)


def test_a_refused_result_becomes_a_failure_of_the_same_job() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    (job,) = driver.deliver(*raw_ids(1))
    driver.finish(job, outcome=b"too large")
    (sent,) = driver.outcomes()
    driver.acknowledge(sent.seq, jobs_pb2.Receipt(index=0, code=jobs_pb2.RECEIPT_INVALID, message="too large"))
    (again,) = driver.outcomes()
    assert (ids_of(again), again.others[0].failed.message) == ([job.raw_id], "too large")


def test_of_several_frames_the_one_that_the_server_names_is_sent_again() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    one, two = driver.deliver(*raw_ids(2))
    driver.finish(one)
    driver.outcomes()
    driver.finish(two)
    (second,) = driver.outcomes()
    driver.receive(error=jobs_pb2.Error(code="overloaded", retry_after_ms=500), error_seq=second.seq)
    driver.pass_time(0.25)
    assert driver.outcomes() == []
    driver.pass_time(0.25)
    assert driver.outcomes() == [second]


def test_a_frame_that_the_server_will_never_accept_is_given_up() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    (job,) = driver.deliver(*raw_ids(1))
    driver.finish(job)
    (sent,) = driver.outcomes()
    driver.receive(error=jobs_pb2.Error(code="invalid_input"), error_seq=sent.seq)
    driver.disconnect()
    assert not driver.connect().held.ids
    assert driver.outcomes() == []


# --- leases ----------------------------------------------------------------------------------------------------------


def test_a_lost_lease_stops_the_handler_sends_nothing_and_keeps_its_slot_until_it_ends() -> None:
    driver = Driver(make_protocol(slots=1))
    driver.connect()
    driver.send()
    (job,) = driver.deliver(*raw_ids(1))
    assert driver.receive(lost=held(job)).stop == [job]
    assert job.cancel_requested
    assert driver.send() == []
    driver.finish(job)
    (frame,) = driver.send()
    assert (frame.HasField("outcomes"), frame.ready.count) == (False, 1)


def test_a_job_that_was_cut_short_and_then_lost_is_not_handed_back() -> None:
    driver = Driver(make_protocol(slots=2))
    driver.connect()
    driver.send()
    first, second = driver.deliver(*raw_ids(2))
    driver.protocol.stop_sequence.begin(0.0, driver.now)
    driver.act()
    driver.finish(first, outcome=failure("Cancelled", "stopped"))
    driver.receive(lost=held(first))
    driver.pass_time(UNWIND_SECONDS)
    assert [ids_of(one) for one in driver.outcomes()] == [[second.raw_id]]


def test_what_the_server_calls_lost_when_it_answers_hello_is_stopped() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    one, two = driver.deliver(*raw_ids(2))
    driver.disconnect()
    driver.connect(lost=[one])
    assert driver.stopped == [one]
    assert list(driver.protocol.ledger.held) == [two.raw_id]


def test_a_delivery_that_is_held_already_is_ignored_and_a_newer_epoch_replaces_the_older_run() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    (old,) = driver.deliver(*raw_ids(1), epoch=3)
    assert driver.deliver(*raw_ids(1), epoch=3) == []
    (new,) = driver.deliver(*raw_ids(1), epoch=4)
    assert driver.stopped == [old]
    driver.finish(old)
    assert driver.outcomes() == []
    driver.finish(new)
    (outcomes,) = driver.outcomes()
    assert list(outcomes.epochs) == [4]


def test_progress_of_many_calls_is_sent_once_a_second_and_extensions_at_once() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    driver.send()
    (job,) = driver.deliver(*raw_ids(1))
    for done in range(3):
        driver.protocol.beats.add_progress(job, (done, 9, ""), driver.now)
    driver.pass_time(0.0)
    (frame,) = driver.send()
    assert [one.progress.done for one in frame.beat.progress] == [2]
    driver.protocol.beats.add_progress(job, (5, 9, ""), driver.now)
    driver.pass_time(PROGRESS_SECONDS / 2)
    assert driver.send() == []
    driver.protocol.beats.add_extension(job, 120)
    (frame,) = driver.send()
    assert [one.lease_seconds for one in frame.beat.extensions] == [120]


def test_what_one_beat_cannot_carry_follows_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beats, "BEAT_MAX_JOBS", 2)
    driver = Driver(make_protocol(slots=5))
    driver.connect()
    driver.send()
    jobs = driver.deliver(*raw_ids(5))
    for job in jobs:
        driver.protocol.beats.add_extension(job, 60)
    driver.finish(jobs[3])
    (outcomes,) = driver.outcomes()
    driver.acknowledge(outcomes.seq)
    extended = [one.id for frame in driver.sent for one in frame.beat.extensions]
    for _ in range(2):
        driver.pass_time(PROGRESS_SECONDS)
        extended += [one.id for frame in driver.send() for one in frame.beat.extensions]
    assert extended == [job.raw_id for job in jobs if job is not jobs[3]], "no extension of a job that has ended"


def test_a_beat_says_how_many_deliveries_of_its_stream_were_seen() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    driver.deliver(*raw_ids(1))
    seen = driver.protocol.beats.jobs_seen = 7
    driver.protocol.beats.due = True
    assert [frame.beat.jobs_seen for frame in driver.send() if frame.HasField("beat")] == [seen]
    driver.disconnect()
    driver.connect()
    assert driver.protocol.beats.jobs_seen == 0


def test_a_short_lease_is_beaten_for_three_times_while_it_lasts() -> None:
    driver = Driver(make_protocol(lease_seconds=6))
    driver.connect()
    driver.deliver(*raw_ids(1))
    driver.send()
    driver.pass_time(2.0)
    assert any(frame.HasField("beat") for frame in driver.send())


def test_results_of_a_frame_stand_beside_their_jobs_also_when_some_are_empty() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    first, second, third = driver.deliver(*raw_ids(3))
    driver.finish(first, outcome=b"")
    driver.finish(second, outcome=b"2")
    driver.finish(third, outcome=b"3")
    (outcomes,) = driver.outcomes()
    assert list(outcomes.results) == [b"", b"2", b"3"]
    reported = driver.protocol.ledger.outbox.all_unacknowledged()
    assert [one.completed.result for one in reported] == [b"", b"2", b"3"]


def test_of_a_job_that_was_given_back_only_a_success_is_reported() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    (job,) = driver.deliver(*raw_ids(1))
    ledger = driver.protocol.ledger
    job.abandoned = True
    driver.finish(job, outcome=failure("ValueError", "cut short"))
    assert driver.outcomes() == []
    (other,) = driver.deliver(b"o" * 16)
    other.abandoned = True
    driver.finish(other, outcome=b"done")
    (outcomes,) = driver.outcomes()
    assert list(outcomes.results) == [b"done"]
    assert ledger.active == 0


def test_credit_ends_while_too_many_outcomes_are_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "UNACKNOWLEDGED_MAX", 2)
    driver = Driver(make_protocol(slots=4))
    driver.connect()
    driver.send()
    one, two = driver.deliver(*raw_ids(2))
    ledger = driver.protocol.ledger
    driver.finish(one)
    assert ledger.credit() > 0
    driver.finish(two)
    assert ledger.credit() == 0
    for outcomes in driver.outcomes():
        driver.acknowledge(outcomes.seq)
    assert ledger.outbox.count == 0
    assert ledger.credit() + ledger.asked == 4


def test_a_new_stream_has_no_credit_out_and_waits_for_no_answer_to_quiet() -> None:
    ledger = make_protocol().ledger
    ledger.asked = 2
    ledger.rest()
    assert ledger.quiet_unconfirmed
    ledger.new_stream()
    assert (ledger.asked, ledger.quiet_unconfirmed) == (0, False)


def test_a_lost_job_that_has_not_begun_frees_its_place_and_a_newer_run_stays_held() -> None:
    driver = Driver(make_protocol(slots=1, prefetch=2))
    driver.connect()
    driver.deliver(*raw_ids(2))
    ledger = driver.protocol.ledger
    waiting = ledger.held[raw_ids(2)[1]]
    driver.receive(lost=held(waiting))
    assert (ledger.active, len(ledger.held)) == (1, 1)
    (old,) = driver.started
    driver.deliver(old.raw_id, epoch=2)
    newer = ledger.held[old.raw_id]
    assert ledger.lose(old) is True
    assert ledger.held[old.raw_id] is newer
    ledger.acknowledged([old])
    assert ledger.held[old.raw_id] is newer


# --- cancellations and time ------------------------------------------------------------------------------------------


def test_a_handler_that_takes_its_job_has_a_grace_before_it_is_stopped() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    (plain,) = driver.deliver(b"p" * 16)
    (aware,) = driver.deliver(b"a" * 16, topic="takes-job")
    assert driver.receive(cancel=held(plain, aware)).stop == [plain]
    assert aware.cancel_requested
    driver.pass_time(4.5)
    assert driver.stopped == [plain]
    driver.pass_time(0.5)
    assert driver.stopped == [plain, aware]


def test_a_handler_that_does_not_stop_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver(make_protocol())
    driver.connect()
    (job,) = driver.deliver(*raw_ids(1))
    driver.receive(cancel=held(job))
    driver.pass_time(60)
    assert caplog.text.count("did_not_stop") == 1


def test_a_job_that_is_cancelled_before_it_began_is_settled_at_once() -> None:
    driver = Driver(make_protocol(slots=1, prefetch=1))
    driver.connect()
    _, waiting = raw_ids(2)
    driver.deliver(*raw_ids(2))
    driver.receive(cancel=worker_pb2.Held(ids=[waiting], epochs=[1]))
    (outcomes,) = driver.outcomes()
    assert (ids_of(outcomes), outcomes.others[0].failed.type) == ([waiting], "Cancelled")


def test_a_time_limit_counts_from_the_begin_of_the_handler() -> None:
    driver = Driver(make_protocol(time_limit=10.0))
    driver.connect()
    (job,) = driver.deliver(*raw_ids(1))
    driver.pass_time(9.0)
    job.began_at = driver.now
    driver.pass_time(9.5)
    assert driver.stopped == []
    driver.pass_time(0.5)
    assert driver.stopped == [job]
    driver.pass_time(TIMED_OUT_UNWIND_SECONDS)
    (outcomes,) = driver.outcomes()
    assert outcomes.others[0].failed.type == "TimeLimitExceeded"
    driver.finish(job)  # too late: it has its outcome
    assert driver.outcomes() == []


def test_a_deadline_ends_what_waits_and_stops_what_runs() -> None:
    driver = Driver(make_protocol(slots=1, prefetch=1))
    driver.connect()
    (running,) = driver.deliver(*raw_ids(2), deadline_ms=3_000)
    running.began_at = driver.now
    driver.pass_time(3.0)
    assert driver.stopped == [running]
    (outcomes,) = driver.outcomes()
    assert (ids_of(outcomes), outcomes.others[0].failed.type) == (raw_ids(2)[1:], "deadline_exceeded")


def test_the_timers_of_a_job_end_with_it() -> None:
    driver = Driver(make_protocol(time_limit=10.0))
    driver.connect()
    (job,) = driver.deliver(*raw_ids(1), deadline_ms=5_000)
    timers = driver.protocol.timers
    assert (job, "deadline") in timers
    assert (job, "limit") in timers
    driver.finish(job)
    assert (job, "deadline") not in timers
    assert (job, "limit") not in timers
    assert not driver.protocol.ledger.timed


def test_of_a_lost_job_an_error_of_its_own_is_noted_and_nothing_that_follows_from_the_loss() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    jobs = driver.deliver(*raw_ids(4))
    driver.receive(lost=held(*jobs))
    snoozed = jobs_pb2.Outcome(snooze=jobs_pb2.Snooze(delay_ms=5))
    own = failure("ValueError", "no")
    for job, outcome in zip(jobs, (snoozed, own, failure("Cancelled", ""), b"done"), strict=True):
        driver.protocol.ledger.finish(job, outcome, driver.now)
    assert driver.protocol.ledger.unreported == [(jobs[1], own)]
    assert driver.outcomes() == []


def test_no_slot_free_for_long_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver(make_protocol(slots=2))
    driver.connect()
    for job in driver.deliver(*raw_ids(2)):
        job.began_at = driver.now
    driver.pass_time(290)
    assert "all_slots_stuck" not in caplog.text
    driver.pass_time(600)
    assert caplog.text.count("all_slots_stuck") == 1


# --- drain and stop --------------------------------------------------------------------------------------------------


def test_a_draining_server_gets_the_unbegun_back_and_is_left_when_the_rest_is_done() -> None:
    driver = Driver(make_protocol(slots=1, prefetch=1))
    driver.connect()
    driver.send()
    (running,) = driver.deliver(*raw_ids(2))
    assert driver.receive(drain=worker_pb2.Drain()).take_back
    (back,) = driver.outcomes()
    assert (ids_of(back), kinds(back)) == (raw_ids(2)[1:], ["abandon"])
    driver.acknowledge(back.seq)
    assert not driver.protocol.may_end_stream
    driver.finish(running)
    (done,) = driver.outcomes()
    driver.acknowledge(done.seq)
    assert driver.protocol.may_end_stream
    assert not driver.protocol.actions.ended
    assert not any(frame.HasField("ready") for frame in driver.send())


def test_a_draining_server_is_left_with_what_still_runs_when_its_time_is_over() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    (job,) = driver.deliver(*raw_ids(1))
    driver.receive(drain=worker_pb2.Drain())
    driver.pass_time(DRAIN_SECONDS - 1)
    assert not driver.protocol.may_end_stream
    driver.pass_time(1)
    assert driver.protocol.may_end_stream
    driver.disconnect()
    assert list(driver.connect().held.ids) == [job.raw_id]


def test_a_stop_asks_for_quiet_returns_the_unbegun_and_ends_when_all_is_acknowledged() -> None:
    driver = Driver(make_protocol(slots=2, prefetch=2))
    driver.connect()
    driver.send()
    running, unbegun = driver.deliver(*raw_ids(3))
    driver.unbegun = lambda: [unbegun]
    driver.protocol.stop_sequence.begin(30.0, driver.now)
    driver.act()
    (frame,) = driver.send()
    assert frame.HasField("quiet")
    assert (ids_of(frame.outcomes), kinds(frame.outcomes)) == ([raw_ids(3)[2], unbegun.raw_id], ["abandon"] * 2)
    driver.acknowledge(frame.outcomes.seq)
    assert driver.deliver(b"l" * 16) == []  # was on its way
    (late,) = driver.outcomes()
    assert kinds(late) == ["abandon"]
    driver.acknowledge(late.seq)
    driver.finish(running, outcome=b"r")
    (done,) = driver.outcomes()
    driver.acknowledge(done.seq)
    assert not driver.protocol.actions.ended  # more may be on its way
    driver.receive(quieted=worker_pb2.Quieted())
    assert driver.protocol.actions.ended
    assert driver.protocol.may_end_stream


def test_a_stop_of_an_operator_is_asked_for_once_over_all_streams(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver(make_protocol())
    driver.connect()
    stop = worker_pb2.Stop(by="ana", reason="memory leak")
    with caplog.at_level(logging.INFO, "headgate.worker"):
        assert driver.receive(stop=stop).stop_worker
        driver.receive(stop=stop)
        driver.disconnect()
        driver.connect()
        driver.receive(stop=stop)
    assert driver.stop_requests == 1
    assert [record.getMessage() for record in caplog.records if "stopping" in record.message] == [
        'stopping asked_by=ana reason="memory leak"'
    ]


def test_a_process_says_in_every_hello_how_long_ago_it_was_first_connected() -> None:
    driver = Driver(make_protocol())
    assert driver.connect().connected_ms == 0
    driver.now += 90.5
    driver.disconnect()
    assert driver.connect().connected_ms == 90_500
    driver.now += 10
    driver.disconnect()
    assert driver.connect().connected_ms == 100_500


@pytest.mark.parametrize("hurried", [False, True])
def test_a_handler_that_outlasts_the_grace_is_stopped_and_its_job_returned(hurried: bool) -> None:
    driver = Driver(make_protocol())
    driver.connect()
    (job,) = driver.deliver(*raw_ids(1))
    driver.protocol.stop_sequence.begin(3.0, driver.now)
    driver.act()
    if hurried:
        driver.protocol.stop_sequence.hurry(driver.now)
        driver.act()
    else:
        driver.pass_time(3.0)
    assert driver.stopped == [job]
    assert driver.outcomes() == []  # it has a moment to clean up
    driver.pass_time(UNWIND_SECONDS)
    assert driver.stopped == [job]
    (outcomes,) = driver.outcomes()
    assert kinds(outcomes) == ["abandon"]
    driver.finish(job, outcome=failure("Cancelled", "cut short"))
    assert driver.outcomes() == []


def test_unacknowledged_outcomes_are_reported_without_a_stream_at_the_end() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    one, two = driver.deliver(*raw_ids(2))
    driver.finish(one, outcome=b"r")
    driver.outcomes()
    driver.finish(two, outcome=failure("ValueError", "no"))
    driver.protocol.stop_sequence.begin(3.0, driver.now)
    driver.act()
    driver.disconnect()
    driver.pass_time(FLUSH_SECONDS)
    assert driver.reports == 1
    assert not driver.protocol.actions.ended
    left = driver.protocol.ledger.outbox.all_unacknowledged()
    assert [(one.id, one.epoch, one.WhichOneof("kind")) for one in left] == [
        (one.raw_id, 1, "completed"),
        (two.raw_id, 1, "failed"),
    ]
    driver.protocol.stop_sequence.reported()
    assert driver.protocol.actions.ended


def test_a_worker_that_stops_without_a_connection_ends_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    driver = Driver(make_protocol())
    driver.protocol.stop_sequence.begin(3.0, driver.now)
    driver.act()
    assert driver.protocol.actions.ended
    assert not caplog.text


# --- timers ----------------------------------------------------------------------------------------------------------


def test_timers_run_in_the_order_of_their_times_and_only_once() -> None:
    timers, seen = Timers(), list[tuple[str, float]]()
    for key, due in (("b", 2.0), ("a", 1.0), ("c", 3.0), ("d", 4.0)):
        timers.set(key, due, lambda key, now: seen.append((key, now)), key)
    timers.cancel("c")
    timers.set("d", 0.5, lambda now: seen.append(("d again", now)))
    assert timers.next_due == 0.5
    timers.advance(2.5)
    timers.advance(9.0)
    assert [key for key, _ in seen] == ["d again", "a", "b"]
    assert timers.next_due is None


def test_cancelled_timers_do_not_pile_up() -> None:
    timers = Timers()
    timers.set("kept", 10.0, lambda now: None)
    for number in range(10_000):
        timers.set(number, 1e9, lambda now: None)
        timers.cancel(number)
    assert len(timers._heap) < 100
    timers.advance(9.0)
    assert timers.next_due == 10.0
