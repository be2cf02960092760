"""When a worker takes its server for lost: no server, no handlers, no clock."""

from __future__ import annotations

from headgate.domain.limits import RECONNECT_GRACE_DEFAULT
from headgate.sdk.worker.beats import PROBE_SECONDS, QUIET_SECONDS, silence_limit
from headgate.wire import worker_pb2
from tests.support.worker_protocol import BEAT_SECONDS, Driver, held, make_protocol, raw_ids


def test_beats_list_all_that_is_held_and_a_silent_server_is_left() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    (job,) = driver.deliver(*raw_ids(1))
    for _ in range(4):
        driver.send()
        driver.receive(beat_ack=worker_pb2.BeatAck())
        driver.pass_time(BEAT_SECONDS / 4)
    (beat,) = [frame.beat for frame in driver.send() if frame.HasField("beat")]
    assert list(beat.held.ids) == [job.raw_id]
    driver.receive(lost=held(job))  # it holds nothing any more, and may wait longer for an answer
    driver.pass_time(silence_limit(BEAT_SECONDS))
    assert driver.reconnects == 0
    driver.pass_time(BEAT_SECONDS / 2)
    assert driver.reconnects == 1


def test_a_worker_that_holds_jobs_and_hears_nothing_asks_for_an_answer_and_reconnects_within_the_grace() -> None:
    """As when only its server knows that the connection is gone. An idle worker has nothing to lose by noticing late.

    What it sends meanwhile is no sign of its server.
    """
    idle, busy = Driver(make_protocol()), Driver(make_protocol())
    for driver in (idle, busy):
        driver.connect()
        driver.send()
    (job, *_) = busy.deliver(*raw_ids(2))
    for driver in (idle, busy):
        driver.pass_time(PROBE_SECONDS + 2)
    assert idle.send() == []
    (probe,) = busy.send()
    assert probe == worker_pb2.WorkerFrame(beat=worker_pb2.Beat())
    busy.finish(job)
    assert len(busy.outcomes()) == 1
    for driver in (idle, busy):
        driver.pass_time(RECONNECT_GRACE_DEFAULT.total_seconds() - PROBE_SECONDS - 3)
    assert (idle.reconnects, busy.reconnects) == (0, 1)


def test_an_answer_keeps_the_connection_and_a_process_that_stalled_asks_again_before_it_leaves() -> None:
    driver = Driver(make_protocol())
    driver.connect()
    driver.send()
    driver.deliver(*raw_ids(1))
    for _ in range(4):
        driver.pass_time(QUIET_SECONDS - 1)
        assert [frame.HasField("beat") for frame in driver.send()] == [True]
        driver.receive(beat_ack=worker_pb2.BeatAck())
    driver.pass_time(2.0)
    driver.now += silence_limit(BEAT_SECONDS) - 4  # no timer ran: frozen, and what has arrived is not read yet
    driver.pass_time(1.0)
    assert driver.reconnects == 0


def test_a_connection_is_not_left_twice_for_an_answer_that_is_only_late() -> None:
    """A large result that takes half a minute would be sent again and again."""
    driver = Driver(make_protocol())
    driver.connect()
    driver.deliver(*raw_ids(1))
    driver.pass_time(QUIET_SECONDS + 1)
    assert driver.reconnects == 1
    driver.connect()
    driver.pass_time(2 * QUIET_SECONDS)
    assert driver.reconnects == 1
    driver.receive(beat_ack=worker_pb2.BeatAck())  # late
    driver.pass_time(2 * QUIET_SECONDS)
    assert driver.reconnects == 1
    driver.receive(beat_ack=worker_pb2.BeatAck())
    driver.pass_time(PROBE_SECONDS + 1)
    driver.receive(beat_ack=worker_pb2.BeatAck())  # quick again
    driver.pass_time(QUIET_SECONDS + 2)
    assert driver.reconnects == 2
