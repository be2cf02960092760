"""The store as a value: what every verb of `store/` must answer and leave behind, described without SQL.

The life cycle itself is `domain/lifecycle.py`; here is what surrounds it: all jobs in one dict, live and finished, with
their bodies and histories; idempotency keys; ids that were sent again; pause rows. `now` is the database's clock, which
stalls during a verb. So every answer is exact, and one step of the model is one call of the store.

Where the store may choose (two jobs of one rank, two due at one instant), the model says which choices are right:
`claimable`, `due` and `expired`. Its caller then tells it what was chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from headgate.domain import lifecycle
from headgate.domain.errors import WrongState
from headgate.domain.ids import Epoch, JobId
from headgate.domain.jobs import Submission, TopicRules, body_digest
from headgate.domain.keyrange import KeyRanges
from headgate.domain.lifecycle import JobRecord, Step
from headgate.domain.outcomes import LEASE_EXPIRED, Completed, ErrorInfo, Failed, Nack, Outcome
from headgate.domain.states import EventKind, Receipt, State, SubmitReceipt
from tests.support.store_calls import Submitted

REMEMBERED_FOR: Final = timedelta(hours=1)
WAITING: Final = (State.SCHEDULED, State.RETRYING)


class Ref(NamedTuple):
    """A job's name in the store: the same id under two tenants is two jobs."""

    tenant_no: int
    id: UUID


class Target(NamedTuple):
    """What a pause covers: (0, 0) everything, (tenant, 0) a tenant, (tenant, topic) a topic."""

    tenant_no: int = 0
    topic_no: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One submission, with the numbers of its names."""

    ref: Ref
    topic_no: int
    job: Submission
    new_id: bool

    @property
    def key(self) -> tuple[int, str] | None:
        return None if self.job.key is None else (self.topic_no, self.job.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job with all that the store keeps of it; the rules know only `record`."""

    record: JobRecord
    topic_no: int
    payload: bytes
    created_at: datetime
    tags: frozenset[str] = frozenset()
    headers: Mapping[str, str]
    edited: bool = False  # a redrive changed the body, so a resend of the first one is no conflict
    owner: int | None = None
    worker: str | None = None
    claimed_at: datetime | None = None
    lease: timedelta = timedelta(0)  # how long it was granted for, when that was last done
    finished_at: datetime | None = None
    last_error: str | None = None
    result: bytes | None = None

    @property
    def state(self) -> State:
        return self.record.state


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of a job's history."""

    at: datetime
    kind: EventKind
    state: State
    epoch: int
    attempt: int
    run_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An idempotency key: the job it stands for, the body it was given with, and when it is free again."""

    job_id: UUID
    digest: bytes
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A pause row. A resume keeps it, and keeps when it was last paused."""

    paused_at: datetime | None
    paused: bool = True
    until: datetime | None = None
    reason: str = ""

    def holds(self, now: datetime) -> bool:
        return self.paused and (self.until is None or self.until > now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the sender of an outcome is notified: the receipt, and how the job stands now."""

    receipt: Receipt
    state: State | None = None
    run_at: datetime | None = None


class StoreModel:
    """All jobs of all tenants, and the verbs on them."""

    def __init__(self, now: datetime, topics: Mapping[int, TopicRules]) -> None:
        self.now = now
        self.topics = topics
        self.jobs: dict[Ref, Job] = {}
        self.events: dict[Ref, list[Event]] = {}  # outlives the job
        self.keys: dict[tuple[int, str], Key] = {}
        self.remembered: dict[Ref, datetime] = {}  # ids sent again, and until when that is known at least
        self.pauses: dict[Target, Pause] = {Target(): Pause(paused=False, paused_at=None)}
        self.limits: dict[int, int] = {}  # by topic: how many may run at once

    # --- submit -----------------------------------------------------------------------------------------------------

    def submit(self, batch: Sequence[Asked]) -> list[Submitted]:
        """Submit jobs as one flush: first the first copies of all ids in it, then the second ones, and so on."""
        rounds: list[list[int]] = []
        copies: Counter[Ref] = Counter()
        for place, asked in enumerate(batch):
            nth = copies[asked.ref]
            copies[asked.ref] += 1
            if nth == len(rounds):
                rounds.append([])
            rounds[nth].append(place)
        answers: dict[int, Submitted] = {}
        for nth, places in enumerate(rounds):
            # Whatever a second copy says of itself, its id is not new any more.
            part = [replace(batch[place], new_id=batch[place].new_id and nth == 0) for place in places]
            answers |= zip(places, self._flush(part), strict=True)
        return [answers[place] for place in range(len(batch))]

    def _flush(self, batch: Sequence[Asked]) -> list[Submitted]:
        answers: dict[int, Submitted] = {}
        freed: set[tuple[int, str]] = set()
        again: list[int] = []  # they met a key in the hands of a neighbour that was then refused: a flush of their own
        for place, asked in enumerate(batch):
            if asked.key in freed:
                again.append(place)
                continue
            held = asked.key is not None and self._holder(asked.key) is not None
            answers[place] = self._submit(asked, position=place + 1)
            if asked.key is not None and not held and answers[place].receipt is SubmitReceipt.CONFLICT:
                freed.add(asked.key)
        if again:
            answers |= zip(again, self._flush([batch[place] for place in again]), strict=True)
        return [answers[place] for place in range(len(batch))]

    def may_be_new(self, ref: Ref) -> bool:
        """Whether a copy that claims to be the first is safe: a finished twin is only looked for if one was resent."""
        return ref not in self.jobs or not self.jobs[ref].state.is_final or ref in self.remembered

    def _submit(self, asked: Asked, *, position: int) -> Submitted:
        digest = body_digest(asked.job.topic, asked.job.payload)
        if asked.key is not None and (key := self._holder(asked.key)) is not None:
            receipt = SubmitReceipt.DUPLICATE if key.digest == digest else SubmitReceipt.CONFLICT
            return Submitted(id=JobId(key.job_id), receipt=receipt)
        receipt = self._insert(asked, position)
        if not asked.new_id:
            self.remembered[asked.ref] = self.now + REMEMBERED_FOR
        if asked.key is not None and asked.job.key_window is not None:
            if receipt is SubmitReceipt.CONFLICT:  # a key is not spent on a job that was refused
                self.keys.pop(asked.key, None)
            else:
                expires_at = self.now + asked.job.key_window
                self.keys[asked.key] = Key(job_id=asked.ref.id, digest=digest, expires_at=expires_at)
        return Submitted(id=asked.job.id, receipt=receipt)

    def _holder(self, key: tuple[int, str]) -> Key | None:
        held = self.keys.get(key)
        return held if held is not None and held.expires_at > self.now else None

    def _insert(self, asked: Asked, position: int) -> SubmitReceipt:
        ref, job, topic_no = asked.ref, asked.job, asked.topic_no
        there = self.jobs.get(ref)
        if there is not None:
            assert not asked.new_id or self.may_be_new(ref), "a new id must not be that of a finished job"
            same = there.edited or (there.topic_no, there.payload) == (topic_no, job.payload)
            return SubmitReceipt.DUPLICATE if same else SubmitReceipt.CONFLICT
        if asked.new_id and ref in self.remembered:
            return SubmitReceipt.DUPLICATE  # the late first copy of a job that was made, ended and discarded
        self.jobs[ref] = Job(
            record=lifecycle.submit(job, now=self.now, rules=self.topics[topic_no], position=position),
            topic_no=topic_no,
            payload=job.payload,
            created_at=self.now,
            tags=frozenset(job.tags),
            headers=job.headers,
        )
        return SubmitReceipt.CREATED

    # --- claim ------------------------------------------------------------------------------------------------------

    def claimable(self, tenant_no: int, topic_nos: Iterable[int]) -> list[Ref]:
        """What a claim of these topics may take, best first; jobs of one rank in any order."""
        if any(self._paused(target) for target in (Target(), Target(tenant_no))):
            return []
        open_topics = {no for no in topic_nos if not self._paused(Target(tenant_no, no))}
        return sorted(
            (
                ref
                for ref, job in self.jobs.items()
                if ref.tenant_no == tenant_no and job.topic_no in open_topics and job.state is State.PENDING
            ),
            key=lambda ref: (*self.jobs[ref].record.order_key, ref.id),
        )

    def within_limits(self, refs: Iterable[Ref]) -> list[Ref]:
        """Of jobs in the order of a claim, those for which their topics have room."""
        room = dict(self.limits)
        for job in self.jobs.values():
            if job.state is State.RUNNING and job.topic_no in room:
                room[job.topic_no] -= 1
        kept: list[Ref] = []
        for ref in refs:
            topic_no = self.jobs[ref].topic_no
            if topic_no in room:
                room[topic_no] -= 1
                if room[topic_no] < 0:
                    continue
            kept.append(ref)
        return kept

    def visible(self, refs: Iterable[Ref], ranges: KeyRanges, hints: Collection[UUID]) -> list[Ref]:
        """Those that a claim within these ranges, or by these ids, can see."""
        stretches = list(
            zip(
                ranges.topic_nos,
                zip(ranges.class_from, ranges.rank_from, strict=True),
                zip(ranges.class_to, ranges.rank_to, strict=True),
                strict=True,
            )
        )

        def seen(job: Job) -> bool:
            return any(topic == job.topic_no and low <= job.record.order_key < high for topic, low, high in stretches)

        return [ref for ref in refs if ref.id in hints or seen(self.jobs[ref])]

    def claim(self, ref: Ref, *, owner: int, worker: str, lease: timedelta) -> Job:
        """Lease one claimable job."""
        job = self.jobs[ref]
        record = lifecycle.claim(job.record, now=self.now, lease=lease)
        self.jobs[ref] = replace(job, record=record, owner=owner, worker=worker, claimed_at=self.now, lease=lease)
        return self.jobs[ref]

    # --- leases -----------------------------------------------------------------------------------------------------

    def renew(self, ref: Ref, epoch: int, *, lease: timedelta) -> tuple[bool, bool]:
        """Push one lease forward; says (lost, to be cancelled)."""
        job = self.jobs.get(ref)
        if job is None:
            return True, False
        step = lifecycle.renew(job.record, Epoch(epoch), now=self.now, lease=lease)
        pushed = job.record.lease_until is not None and job.record.lease_until <= self.now + lease
        applied = step.receipt is Receipt.APPLIED
        self.jobs[ref] = replace(job, record=step.job, lease=lease if applied and pushed else job.lease)
        return not applied, applied and step.job.cancel_requested

    def due(self) -> list[Ref]:
        """What a promotion may take, the longest due first; those due at one instant in any order."""
        waiting = [ref for ref, job in self.jobs.items() if job.state in WAITING and job.record.run_at <= self.now]
        return sorted(waiting, key=lambda ref: self.jobs[ref].record.run_at)

    def promote(self, ref: Ref) -> None:
        job = self.jobs[ref]
        self.jobs[ref] = replace(job, record=lifecycle.promote(job.record, now=self.now))

    def expired(self) -> list[Ref]:
        """What the watchdog may end, the oldest attempt first; those that began at one instant in any order."""
        over: list[tuple[datetime, Ref]] = []
        for ref, job in self.jobs.items():
            if job.claimed_at is not None and job.record.lease_until is not None and job.record.lease_until < self.now:
                over.append((job.claimed_at, ref))
        return [ref for _, ref in sorted(over)]

    def ahead(self) -> list[Ref]:
        """Leases that end later than one granted now would: the clock was set back, and the watchdog cuts them."""
        return [
            ref
            for ref, job in self.jobs.items()
            if job.record.lease_until is not None and job.record.lease_until > self.now + job.lease
        ]

    def cut(self, ref: Ref) -> None:
        job = self.jobs[ref]
        self.jobs[ref] = replace(job, record=replace(job.record, lease_until=self.now + job.lease))

    def reap(self, ref: Ref) -> Answer:
        """End the attempt of a job whose lease is over."""
        return self._settle(
            ref, lambda record: lifecycle.expire_lease(record, now=self.now), error=_text(LEASE_EXPIRED)
        )

    # --- settle -----------------------------------------------------------------------------------------------------

    def settle(self, ref: Ref, epoch: int, outcome: Outcome) -> Answer:
        """Report one outcome, of whatever epoch, for whatever job."""
        error: str | None = None
        if isinstance(outcome, Failed):
            error = _text(outcome.error)
        elif isinstance(outcome, Nack):
            error = outcome.reason
        return self._settle(
            ref,
            lambda record: lifecycle.report(record, Epoch(epoch), outcome, now=self.now),
            error=error,
            result=outcome.result if isinstance(outcome, Completed) else None,
        )

    def _settle(
        self, ref: Ref, rule: Callable[[JobRecord], Step], *, error: str | None, result: bytes | None = None
    ) -> Answer:
        job = self.jobs.get(ref)
        if job is None:
            return Answer(receipt=Receipt.UNKNOWN)
        step = rule(job.record)
        after = step.job
        due = after.run_at if after.state in WAITING else None
        if step.receipt is not Receipt.APPLIED:
            return Answer(receipt=step.receipt, state=after.state, run_at=due)
        if step.event is not None:
            # The history tells of the attempt that was made, also where it is given back.
            again = None if after.state.is_final or step.event is EventKind.ABANDONED else after.run_at
            self._note(ref, step.event, after, attempt=job.record.attempt, run_at=again)
        self.jobs[ref] = replace(
            job,
            record=after,
            owner=job.owner if after.state.is_final else None,
            finished_at=self.now if after.state.is_final else None,
            last_error=job.last_error if error is None else error,
            result=result,
        )
        return Answer(receipt=Receipt.APPLIED, state=after.state, run_at=due)

    # --- verbs of operators -----------------------------------------------------------------------------------------

    def cancel(self, ref: Ref) -> tuple[bool, State] | None:
        """Says (changed, state afterwards), or None for a job that does not exist."""
        job = self.jobs.get(ref)
        if job is None:
            return None
        try:
            step = lifecycle.cancel(job.record)
        except WrongState:
            return False, job.state
        if step.event is not None:
            finished_at = self.now if step.job.state.is_final else None
            self.jobs[ref] = replace(job, record=step.job, finished_at=finished_at)
            self._note(ref, step.event, step.job)
        return step.event is not None, step.job.state

    def redrive(self, ref: Ref, *, payload: bytes | None, delay: timedelta, position: int) -> JobRecord | None:
        """Says where the job stands in the new order, or None if it is not finished, or unknown."""
        job = self.jobs.get(ref)
        if job is None:
            return None
        try:
            step = lifecycle.redrive(
                job.record,
                now=self.now,
                ageing_step=self.topics[job.topic_no].ageing_step,
                position=position,
                delay=delay,
            )
        except WrongState:
            return None
        self.jobs[ref] = replace(
            job,
            record=step.job,
            payload=job.payload if payload is None else payload,
            edited=job.edited or payload is not None,
            owner=None,
            worker=None,
            claimed_at=None,
            finished_at=None,
            result=None,
        )
        assert step.event is not None
        self._note(ref, step.event, step.job, run_at=step.job.run_at)
        return step.job

    def reprioritise(self, ref: Ref, priority: int) -> tuple[bool, State] | None:
        """Says (changed, state), or None for a job that does not exist."""
        job = self.jobs.get(ref)
        if job is None:
            return None
        try:
            step = lifecycle.reprioritise(job.record, priority, ageing_step=self.topics[job.topic_no].ageing_step)
        except WrongState:
            return False, job.state
        self.jobs[ref] = replace(job, record=step.job)
        assert step.event is not None
        self._note(ref, step.event, step.job)
        return True, step.job.state

    def discard(self, ref: Ref) -> bool:
        """Says whether the job was removed."""
        job = self.jobs.get(ref)
        if job is None:
            return False
        try:
            event = lifecycle.discard(job.record)
        except WrongState:
            return False
        self._note(ref, event, job.record)
        del self.jobs[ref]
        return True

    # --- pause and upkeep -------------------------------------------------------------------------------------------

    def pause(self, target: Target, *, reason: str, until: datetime | None) -> None:
        self.pauses[target] = Pause(paused_at=self.now, until=until, reason=reason)

    def resume(self, target: Target) -> bool:
        """Says whether it was paused until now: one that ended by itself was not."""
        pause = self.pauses.get(target)
        if pause is None or not pause.paused:
            return False
        held = self._paused(target)
        self.pauses[target] = Pause(paused=False, paused_at=pause.paused_at)
        return held

    def forget_expired(self) -> int:
        """Drop keys and remembered ids whose time is over; says how many."""
        keys = [key for key, value in self.keys.items() if value.expires_at <= self.now]
        refs = [ref for ref, expires_at in self.remembered.items() if expires_at <= self.now]
        for key in keys:
            del self.keys[key]
        for ref in refs:
            del self.remembered[ref]
        return len(keys) + len(refs)

    # --- what people read -------------------------------------------------------------------------------------------

    def counts(self) -> dict[tuple[int, int, State], int]:
        """Jobs by tenant, topic and state."""
        return Counter((ref.tenant_no, job.topic_no, job.state) for ref, job in self.jobs.items())

    def history(self, ref: Ref) -> list[Event]:
        """The job's events in the order of their stamps, which a clock that stepped back does not keep."""
        return sorted(self.events.get(ref, ()), key=lambda event: event.at)

    def _paused(self, target: Target) -> bool:
        return target in self.pauses and self.pauses[target].holds(self.now)

    def _note(
        self,
        ref: Ref,
        kind: EventKind,
        job: JobRecord,
        *,
        attempt: int | None = None,
        run_at: datetime | None = None,
    ) -> None:
        event = Event(
            at=self.now,
            kind=kind,
            state=job.state,
            epoch=job.epoch,
            attempt=job.attempt if attempt is None else attempt,
            run_at=run_at,
        )
        self.events.setdefault(ref, []).append(event)


def _text(error: ErrorInfo) -> str:
    return f"{error.type}: {error.message}" if error.type else error.message
