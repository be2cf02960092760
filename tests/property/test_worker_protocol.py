"""Whatever a server sends and however handlers end: no outcome is lost, none is sent after its acknowledgement, credit
never exceeds the slots, a reconnect sends exactly what is unacknowledged, and a lost lease stops its handler.

The machine plays the server (it delivers within the credit, acknowledges, loses leases, cancels, drains, breaks the
stream), the slots (handlers begin and end in any order) and the clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headgate.sdk.outcomes import failure
from headgate.sdk.worker.held_job import FINISHED, STARTED, HeldJob
from headgate.wire import jobs_pb2, worker_pb2
from tests.support.worker_protocol import Driver, delivery, held, ids_of, make_protocol

LOG: Final = logging.getLogger("headgate.worker")
SLOTS: Final = 3
PREFETCH: Final = 2
Run: TypeAlias = tuple[bytes, int]
IDS: Final = st.integers(1, 8).map(lambda number: number.to_bytes(16, "big"))


class WorkerMachine(RuleBasedStateMachine):
    """One worker from its start to its end."""

    def __init__(self) -> None:
        super().__init__()
        LOG.setLevel(logging.CRITICAL)
        self.driver = Driver(make_protocol(slots=SLOTS, prefetch=PREFETCH, slots_queue=1, time_limit=30.0))
        self.driver.unbegun = self._take_back
        self.credit = 0
        self.epochs: dict[bytes, int] = {}
        self.runs: dict[Run, HeldJob] = {}
        self.acknowledged: set[Run] = set()
        self.lost: set[Run] = set()
        self.lost_unsettled: set[Run] = set()
        """Runs whose lease was lost before they had an outcome."""
        self.in_flight: dict[int, worker_pb2.Outcomes] = {}
        self.unacknowledged: dict[int, worker_pb2.Outcomes] = {}
        """Frames that were sent on any stream, and not answered."""
        self.reconnects = self.reports = 0
        self.writer_blocked = False
        self.started_before_stop: int | None = None

    # --- the server --------------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self.driver.protocol.connected

    @property
    def running(self) -> bool:
        return not self.driver.protocol.actions.ended

    @precondition(lambda self: self.running and not self.connected)
    @rule()
    def connect(self) -> None:
        expected = {job.raw_id: job.epoch for job in self.runs.values() if self._is_held(job)}
        hello = self.driver.connect()
        assert dict(zip(hello.held.ids, hello.held.epochs, strict=True)) == expected
        self.credit, self.in_flight = 0, {}
        resent = [frame for frame in self._send() if frame.seq in self.unacknowledged_before]
        assert resent == [self.unacknowledged_before[seq] for seq in sorted(self.unacknowledged_before)]

    @precondition(lambda self: self.running and self.connected)
    @rule()
    def disconnect(self) -> None:
        self.driver.disconnect()
        self.credit = 0
        self.in_flight = {}
        self._after()

    @rule()
    def block_or_unblock_the_writer(self) -> None:
        self.writer_blocked = not self.writer_blocked
        self._after()

    @precondition(lambda self: self.running and self.connected and self.credit)
    @rule(
        ids=st.lists(IDS, min_size=1, max_size=5, unique=True),
        newer=st.booleans(),
        deadline=st.sampled_from([0, 9_000]),
    )
    def deliver(self, ids: list[bytes], newer: bool, deadline: int) -> None:
        ids = ids[: self.credit]
        self.credit -= len(ids)
        epochs = []
        for raw_id in ids:
            epoch = self.epochs.get(raw_id, 0)
            # The server gives a job out again only under a higher epoch; the same delivery may come twice.
            ours = (raw_id, epoch) in self.runs and self._is_held(self.runs[raw_id, epoch])
            if not ours or newer:
                if ours:
                    self._lose(self.runs[raw_id, epoch])
                epoch += 1
            self.epochs[raw_id] = epoch
            epochs.append(epoch)
        before = set(self.driver.protocol.ledger.held.values())
        self.driver.receive(jobs=delivery(*ids, epochs=epochs, deadline_ms=deadline))
        for job in self.driver.protocol.ledger.held.values():
            if job not in before:
                self.runs[job.raw_id, job.epoch] = job
        assert all((raw_id, epoch) in self.runs for raw_id, epoch in zip(ids, epochs, strict=True))
        self._after()

    @precondition(lambda self: self.running and self.in_flight)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.in_flight)))
        frame = self.in_flight.pop(seq)
        self.unacknowledged.pop(seq, None)
        locked = data.draw(st.sets(st.integers(0, len(ids_of(frame)) - 1), max_size=2))
        self.acknowledged |= {run for index, run in enumerate(runs_of(frame)) if index not in locked}
        self.driver.acknowledge(
            seq, *(jobs_pb2.Receipt(index=index, code=jobs_pb2.RECEIPT_LOCKED) for index in sorted(locked))
        )
        self._after()

    @precondition(lambda self: self.running and self.in_flight)
    @rule(data=st.data())
    def refuse_for_now(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from([0, *sorted(self.in_flight)]))
        self.driver.receive(error=jobs_pb2.Error(code="overloaded", retry_after_ms=100), error_seq=seq)
        self._after()

    @precondition(lambda self: self.running and self.connected and self.driver.protocol.ledger.held)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        jobs = data.draw(st.lists(st.sampled_from(list(self.driver.protocol.ledger.held.values())), unique=True))
        for job in jobs:
            self._lose(job)
        self.driver.receive(lost=held(*jobs))
        self._after()

    @precondition(lambda self: self.running and self.connected and self.driver.protocol.ledger.held)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        jobs = data.draw(st.lists(st.sampled_from(list(self.driver.protocol.ledger.held.values())), unique=True))
        self.driver.receive(cancel=held(*jobs))
        self._after()

    @precondition(lambda self: self.running and self.connected)
    @rule()
    def drain(self) -> None:
        self.driver.receive(drain=worker_pb2.Drain(grace_seconds=10))
        self._after()

    @precondition(lambda self: self.running and self.connected)
    @rule()
    def confirm_quiet(self) -> None:
        self.driver.receive(quieted=worker_pb2.Quieted(), beat_ack=worker_pb2.BeatAck())
        self._after()

    # --- handlers and the clock --------------------------------------------------------------------------------------

    @precondition(lambda self: self.in_slots(lambda job: not job.began_at))
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.in_slots(lambda job: not job.began_at)))
        job.began_at = self.driver.now

    @precondition(lambda self: self.in_slots())
    @rule(data=st.data(), fails=st.booleans())
    def finish(self, data: st.DataObject, fails: bool) -> None:
        job = data.draw(st.sampled_from(self.in_slots()))
        self.driver.finish(job, outcome=failure("ValueError", "no") if fails else b"result")
        self._after()

    @rule(seconds=st.sampled_from([0.1, 1.0, 1.0, 5.0, 15.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        self.driver.pass_time(seconds)
        self._after()

    @rule(grace=st.sampled_from([0.0, 5.0, 30.0]), chance=st.integers(0, 9))
    def stop(self, grace: float, chance: int) -> None:
        if chance == 0:  # rarely: it ends the run
            if self.started_before_stop is None:
                self.started_before_stop = len(self.driver.started)
            self.driver.protocol.stop_sequence.begin(grace, self.driver.now)
            self.driver.act()
            self._after()
        elif chance == 1 and self.driver.protocol.ledger.resting:
            self.driver.protocol.stop_sequence.hurry(self.driver.now)
            self.driver.act()
            self._after()

    # --- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def credit_never_exceeds_the_slots(self) -> None:
        ledger = self.driver.protocol.ledger
        assert 0 <= ledger.asked <= self.credit
        assert self.credit + ledger.active <= SLOTS + PREFETCH or ledger.resting
        assert ledger.asked + ledger.active <= SLOTS + PREFETCH
        assert len(self.in_slots()) <= SLOTS + 1
        assert ledger.active == sum(job.stage != FINISHED for job in self.runs.values())

    @invariant()
    def a_lost_lease_stops_its_handler(self) -> None:
        for run in self.lost:
            job = self.runs.get(run)
            if job is not None and job.stage == STARTED:
                assert job.cancel_requested
                assert job in self.driver.stopped

    @invariant()
    def nothing_starts_after_a_request_to_stop(self) -> None:
        if self.started_before_stop is not None:
            assert len(self.driver.started) == self.started_before_stop

    @invariant()
    def the_outbox_counts_what_it_holds(self) -> None:
        outbox = self.driver.protocol.ledger.outbox
        assert outbox.count == len(outbox.all_unacknowledged())

    def teardown(self) -> None:
        """In the end every run that was not lost has its outcome acknowledged, or reported without a stream."""
        for _ in range(100):
            for job in self.in_slots():
                self.driver.finish(job)
            self._after()
            if not self.running:
                break
            if not self.connected:
                self.connect()
            self._send()
            for seq in list(self.in_flight):
                self.acknowledged |= set(runs_of(self.in_flight.pop(seq)))
                self.unacknowledged.pop(seq, None)
                self.driver.acknowledge(seq)
            self.driver.receive(beat_ack=worker_pb2.BeatAck())
            self.driver.pass_time(1.0)
            self._after()
            if not self.driver.protocol.ledger.outbox.count and not self.driver.protocol.ledger.active:
                break
        LOG.setLevel(logging.NOTSET)
        missing = self.runs.keys() - self.lost - self.acknowledged
        assert not missing

    # --- the machine itself ------------------------------------------------------------------------------------------

    def in_slots(self, choose: Callable[[HeldJob], bool] = lambda job: True) -> list[HeldJob]:
        return [job for job in self.runs.values() if job.stage == STARTED and choose(job)]

    def _is_held(self, job: HeldJob) -> bool:
        run = (job.raw_id, job.epoch)
        return run not in self.lost and run not in self.acknowledged

    def _lose(self, job: HeldJob) -> None:
        run = (job.raw_id, job.epoch)
        self.lost.add(run)
        if not job.outcome_queued:
            self.lost_unsettled.add(run)

    def _take_back(self) -> list[HeldJob]:
        return self.in_slots(lambda job: not job.began_at)

    def _send(self) -> list[worker_pb2.Outcomes]:
        """Send all there is; gives the frames of outcomes."""
        self.unacknowledged_before = dict(self.unacknowledged)
        sent = []
        for frame in self.driver.send():
            self.credit += frame.ready.count
            if frame.HasField("outcomes"):
                outcomes = frame.outcomes
                assert not self.acknowledged & set(runs_of(outcomes)), "sent after its acknowledgement"
                assert not self.lost_unsettled & set(runs_of(outcomes)), "sent although its lease was lost"
                assert self.unacknowledged.get(outcomes.seq, outcomes) == outcomes, "a frame has changed"
                self.in_flight[outcomes.seq] = self.unacknowledged[outcomes.seq] = outcomes
                sent.append(outcomes)
        return sent

    def _after(self) -> None:
        """What a stream does after each event: send, connect again, report at the end."""
        if self.driver.reports > self.reports:
            self.reports = self.driver.reports
            left = self.driver.protocol.ledger.outbox.all_unacknowledged()
            self.acknowledged |= {(outcome.id, outcome.epoch) for outcome in left}
            self.driver.protocol.stop_sequence.reported()
        elif self.running and self.driver.reconnects > self.reconnects:
            self.reconnects = self.driver.reconnects
            if self.connected:
                self.disconnect()
        elif self.running and self.connected and not self.writer_blocked:
            self._send()


def runs_of(frame: worker_pb2.Outcomes) -> list[Run]:
    return [*zip(frame.ids, frame.epochs, strict=True), *((other.id, other.epoch) for other in frame.others)]


TestWorkerProtocol = WorkerMachine.TestCase
TestWorkerProtocol.settings = settings(max_examples=400, stateful_step_count=60)
