"""The jobs of a box: what a server stores, in memory and by a clock that moves only when it is moved.

The life cycle is `domain/lifecycle.py`, which the SQL functions are tested against. What surrounds it follows
`store/functions`: idempotency keys, unique keys, dependencies, batches. Limits and rates are not modelled: a box runs
one job at a time. tests/e2e/testing_contract runs the same scenarios against a box and a server.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from headgate.domain import lifecycle
from headgate.domain.dependencies import Dependencies as Asked
from headgate.domain.dependencies import Met, NewBatch, OnConflict, Unique
from headgate.domain.errors import BatchSealed, HeadgateError, InvalidInput, NotFound, UniqueTaken, WrongState
from headgate.domain.ids import JobId
from headgate.domain.jobs import Submission, SubmitAnswer, TopicRules, body_digest
from headgate.domain.lifecycle import JobRecord
from headgate.domain.outcomes import Completed, Failed, Nack, Outcome
from headgate.domain.states import State, SubmitReceipt
from headgate.sdk.options import JobOptions
from headgate.sdk.testing.dependencies import Dependencies, Edge, StoredBatch

LEASE: Final = timedelta(minutes=1)
_ERROR_MAX_CHARS: Final = 1_000
_WAITING: Final = (State.SCHEDULED, State.RETRYING)


@dataclass(slots=True, kw_only=True, eq=False)
class StoredJob:
    """One job with all that the box keeps of it; the rules know only `record`."""

    record: JobRecord
    topic: str
    payload: bytes
    options: JobOptions
    created_at: datetime
    headers: dict[str, str]
    deadline: datetime | None
    tags: tuple[str, ...] = ()
    unique_key: str = ""
    batch: JobId | None = None
    edited: bool = False  # the body was changed, so a repeat of the first submit is no conflict
    waits: bool = False  # for its parents
    claimed_at: datetime | None = None
    finished_at: datetime | None = None
    last_error: str = ""
    result: bytes = b""
    progress: tuple[int, int, str] | None = None

    @property
    def id(self) -> JobId:
        return self.record.id

    @property
    def state(self) -> State:
        return self.record.state


@dataclass(frozen=True, slots=True)
class _Key:
    """An idempotency key: the job it stands for, its body, and when it is free again."""

    job_id: JobId
    digest: bytes
    expires_at: datetime


class BoxStore:
    """All jobs and batches of one box. The caller serialises calls."""

    def __init__(self, now: datetime, rules: Callable[[str], TopicRules]) -> None:
        self.now = now
        self.jobs: dict[JobId, StoredJob] = {}
        self.batches: dict[JobId, StoredBatch] = {}
        self.dependencies = Dependencies()
        self.on_end: Callable[[StoredJob], None] = lambda job: None
        self._rules = rules
        self._live: dict[JobId, StoredJob] = {}
        self._ready: list[tuple[int, int, JobId]] = []  # a heap; what is no longer pending is skipped
        self._keys: dict[tuple[str, str], _Key] = {}
        self._unique: dict[tuple[str, str], JobId] = {}
        self._unique_calls: dict[JobId, JobId] = {}
        self._checks: deque[JobId] = deque()
        self._position = 0

    def get(self, job_id: JobId) -> StoredJob:
        """One job. Raises NotFound."""
        if (job := self.jobs.get(job_id)) is None:
            raise NotFound("job", str(job_id))
        return job

    @property
    def live(self) -> list[StoredJob]:
        """The jobs that have not ended."""
        return list(self._live.values())

    # --- submit ------------------------------------------------------------------------------------------------------

    def submit(self, asked: Submission, options: JobOptions, *, callback: bool = False) -> SubmitAnswer | None:
        """Store a job; None if it was created as asked. `callback`: it waits for a batch."""
        try:
            answer = self._related(asked) or self._known(asked)
            if answer is None:
                self._create(asked, options, waits=callback or bool(asked.depends_on))
        except HeadgateError as error:
            return SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=asked.id, error=error)
        self._run_checks()
        return answer

    def _related(self, asked: Submission) -> SubmitAnswer | None:
        """What its unique key, parents and batch say; raises for what does not exist."""
        if asked.id in self.jobs:  # submitted before: what it depends on is decided
            return None
        if asked.unique is not None:
            if (changed := self._unique_calls.get(asked.id)) is not None:  # the same submit again
                return SubmitAnswer(receipt=SubmitReceipt.DUPLICATE, job_id=changed)
            if (holder := self._unique.get((asked.topic, asked.unique.key))) is not None:
                self._push(self.jobs[holder], asked, asked.unique)
                return SubmitAnswer(receipt=SubmitReceipt.DUPLICATE, job_id=holder)
        for parent in asked.depends_on:
            if parent not in self.jobs:
                raise NotFound("parent job", str(parent))
        if asked.batch is not None:
            if (batch := self.batches.get(JobId(asked.batch))) is None:
                raise NotFound("batch", str(asked.batch))
            if batch.sealed_at is not None:
                raise BatchSealed(asked.batch)
        return None

    def _known(self, asked: Submission) -> SubmitAnswer | None:
        """What its idempotency key and its id say."""
        digest = body_digest(asked.topic, asked.payload)
        key = None if asked.key is None else self._keys.get((asked.topic, asked.key))
        if key is not None and key.expires_at > self.now:
            return _repeated(key.job_id, same=key.digest == digest)
        if (there := self.jobs.get(asked.id)) is not None:
            same = there.edited or (there.topic, there.payload) == (asked.topic, asked.payload)
            return _repeated(asked.id, same=same)
        return None

    def key_of(self, job_id: JobId) -> str:
        """Its idempotency key, until that expires."""
        found = (key for (_, key), one in self._keys.items() if one.job_id == job_id and one.expires_at > self.now)
        return next(found, "")

    def _create(self, asked: Submission, options: JobOptions, *, waits: bool) -> None:
        self._position += 1
        rules = self._rules(asked.topic)
        record = lifecycle.submit(asked, now=self.now, rules=rules, position=self._position, blocked=waits)
        deadline = self.now + asked.deadline if isinstance(asked.deadline, timedelta) else asked.deadline
        job = StoredJob(
            record=record,
            topic=asked.topic,
            payload=asked.payload,
            options=options,
            created_at=self.now,
            headers=dict(asked.headers),
            deadline=deadline,
            tags=tuple(sorted(asked.tags)),
            unique_key=asked.unique.key if asked.unique is not None else "",
            batch=None if asked.batch is None else JobId(asked.batch),
            waits=waits,
        )
        self.jobs[job.id] = job
        if job.unique_key:
            self._unique[job.topic, job.unique_key] = job.id
        if asked.dependencies is not None:
            for parent in asked.dependencies.depends_on:
                self._wait_for(parent, job, asked.dependencies)
        if job.batch is not None:
            self._join(job, self.batches[job.batch])
        if asked.key is not None and asked.key_window is not None:
            digest = body_digest(asked.topic, asked.payload)
            self._keys[asked.topic, asked.key] = _Key(job.id, digest, self.now + asked.key_window)
        self._put(job, record)

    def _wait_for(self, parent: JobId, job: StoredJob, asked: Asked) -> None:
        edge = Edge(parent=parent, child=job.id, needs=asked.needs, on_failure=asked.on_parent_failure)
        self.dependencies.add(edge)
        if (state := self.jobs[parent].state).is_final:
            edge.parent_ended(state)
        self._checks.append(job.id)

    def _join(self, job: StoredJob, batch: StoredBatch) -> None:
        batch.members.append(job.id)
        if batch.callback is not None:
            asked = batch.asked
            self.dependencies.add(
                Edge(parent=job.id, child=batch.callback, needs=asked.needs, on_failure=asked.on_failure)
            )

    def _push(self, holder: StoredJob, asked: Submission, unique: Unique) -> None:
        """Change the live job with the unique key of a submit, unless it runs; see push_unique_v1."""
        mode = unique.mode
        if mode is OnConflict.KEEP:
            return
        self._unique_calls[asked.id] = holder.id
        if holder.state is State.RUNNING:
            return
        run_at = asked.due_at(self.now)
        if unique.debounce_max is not None:
            run_at = min(run_at, holder.created_at + unique.debounce_max)
        if holder.state is State.BLOCKED:
            state = State.BLOCKED
        elif run_at <= self.now:
            state = State.PENDING
        else:
            kept = holder.state is State.RETRYING and mode is OnConflict.RESCHEDULE
            state = State.RETRYING if kept else State.SCHEDULED
        record = replace(holder.record, state=state, run_at=run_at)
        if mode is OnConflict.REPLACE:
            rules = self._rules(holder.topic)
            priority = rules.priority if asked.priority is None else asked.priority
            record = lifecycle.reprioritise(replace(record, attempt=0), priority, ageing_step=rules.ageing_step).job
            holder.payload, holder.edited = asked.payload, True
        self._put(holder, record)

    # --- claim and settle --------------------------------------------------------------------------------------------

    def claim(self, topics: Collection[str]) -> StoredJob | None:
        """Lease the best due job of these topics; None if there is none."""
        passed: list[tuple[int, int, JobId]] = []
        found: StoredJob | None = None
        while self._ready and found is None:
            entry = heapq.heappop(self._ready)
            job = self._live.get(entry[2])
            if job is None or job.state is not State.PENDING or job.record.order_key != entry[:2]:
                continue
            if job.topic in topics:
                found = job
            else:
                passed.append(entry)
        for entry in passed:
            heapq.heappush(self._ready, entry)
        if found is not None:
            self.start(found)
        return found

    def start(self, job: StoredJob) -> None:
        """Lease this pending job."""
        self._put(job, lifecycle.claim(job.record, now=self.now, lease=LEASE))
        job.claimed_at = self.now

    def settle(self, job: StoredJob, outcome: Outcome) -> None:
        """Write the outcome of the running attempt."""
        step = lifecycle.report(job.record, job.record.epoch, outcome, now=self.now)
        match outcome:
            case Completed(result=result):
                job.result = result
            case Failed(error=error):
                text = f"{error.type}: {error.message}" if error.type else error.message
                job.last_error = text[:_ERROR_MAX_CHARS]
            case Nack(reason=reason):
                job.last_error = reason
        self._put(job, step.job)
        self._run_checks()

    # --- verbs -------------------------------------------------------------------------------------------------------

    def cancel(self, job_id: JobId) -> bool:
        """End a queued job, flag a running one; False if that was done before. Raises NotFound, WrongState."""
        job = self.get(job_id)
        if job.state.is_final:
            raise WrongState(job_id, verb="cancel", state=job.state.label, allowed="queued or running")
        step = lifecycle.cancel(job.record)
        self._put(job, step.job)
        self._run_checks()
        return step.event is not None

    def redrive(self, job_id: JobId, *, payload: bytes | None = None, delay: timedelta = timedelta(0)) -> None:
        """Return a finished job to its topic. Raises NotFound, WrongState, UniqueTaken."""
        job = self.get(job_id)
        if not job.state.is_final:
            allowed = "completed, dead or cancelled"
            raise WrongState(job_id, verb="redrive", state=job.state.label, allowed=allowed)
        if job.unique_key:
            holder = self._unique.setdefault((job.topic, job.unique_key), job_id)
            if holder != job_id:
                raise UniqueTaken(job_id, holder=holder)
        self._position += 1
        step = lifecycle.redrive(
            job.record,
            now=self.now,
            ageing_step=self._rules(job.topic).ageing_step,
            position=self._position,
            delay=delay,
        )
        if payload is not None:
            job.payload, job.edited = payload, True
        if job.deadline is not None and job.deadline <= step.job.run_at:
            job.deadline = None
        job.waits, job.finished_at, job.claimed_at = False, None, None
        job.result, job.progress = b"", None
        self._put(job, step.job)

    # --- batches -----------------------------------------------------------------------------------------------------

    def open_batch(self, batch: NewBatch, callback: Submission | None, options: JobOptions) -> StoredBatch:
        """Open a batch with its callback; the same id opens it once."""
        if callback is not None and (callback.dependencies is not None or callback.key is not None):
            raise InvalidInput("on_done", "cannot have a key, a unique key, parents or a batch of its own")
        if (there := self.batches.get(batch.id)) is not None:
            if replace(there.asked, expires_in=batch.expires_in) != batch:
                raise InvalidInput("batch", f"{batch.id} was opened before with another name, need or topic")
            return there
        if callback is not None:
            answer = self.submit(callback, options, callback=True)
            if answer is not None:
                raise answer.error or InvalidInput("on_done", f"job {callback.id} was submitted before")
            self.dependencies.add(Edge(parent=batch.id, child=callback.id))
        opened = StoredBatch(asked=batch, created_at=self.now, callback=None if callback is None else callback.id)
        self.batches[batch.id] = opened
        return opened

    def batch(self, batch_id: JobId) -> StoredBatch:
        """One batch. Raises NotFound."""
        if (batch := self.batches.get(batch_id)) is None:
            raise NotFound("batch", str(batch_id))
        return batch

    def seal(self, batch: StoredBatch, *, expired: bool = False) -> None:
        """Take no more members; the callback of a batch that expired is cancelled."""
        if batch.sealed_at is not None:
            return
        batch.sealed_at, batch.expired = self.now, expired
        for edge in self.dependencies.of_parent(batch.asked.id):
            edge.met = Met.GONE if expired else Met.FULFILLED
            self._checks.append(edge.child)
        self._run_checks()

    # --- the clock ---------------------------------------------------------------------------------------------------

    def next_due(self, topics: Collection[str]) -> datetime | None:
        """When the next job of these topics is due, or the next open batch expires; None if neither is."""
        times = [job.record.run_at for job in self._live.values() if job.state in _WAITING and job.topic in topics]
        times += [batch.expires_at for batch in self.batches.values() if batch.sealed_at is None and batch.callback]
        return min(times, default=None)

    def advance(self, now: datetime) -> None:
        """Set the clock forward; what is due becomes pending, and open batches expire."""
        self.now = max(self.now, now)
        for job in self.live:
            if job.state in _WAITING:
                self._put(job, lifecycle.promote(job.record, now=self.now))
        for batch in self.batches.values():
            if batch.sealed_at is None and batch.expires_at <= self.now:
                self.seal(batch, expired=True)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _put(self, job: StoredJob, record: JobRecord) -> None:
        """Give a job its next record: the only place where a state changes."""
        was_final = job.id not in self._live
        job.record = record
        if not record.state.is_final:
            self._live[job.id] = job
            if record.state is State.PENDING:
                heapq.heappush(self._ready, (*record.order_key, job.id))
        elif not was_final:
            del self._live[job.id]
            job.finished_at = self.now
            if job.unique_key and self._unique.get((job.topic, job.unique_key)) == job.id:
                del self._unique[job.topic, job.unique_key]
            self._checks.extend(self.dependencies.ended(job.id, record.state))
            self.on_end(job)

    def _run_checks(self) -> None:
        """Unblock or cancel jobs whose parents have ended; a loop, since a cancelled child has children of its own."""
        while self._checks:
            job = self.jobs[self._checks.popleft()]
            if not job.waits or job.state is not State.BLOCKED:
                continue
            if self.dependencies.is_broken(job.id):
                self._put(job, lifecycle.cancel(job.record).job)
            elif self.dependencies.is_fulfilled(job.id):
                job.waits = False
                self._put(job, lifecycle.unblock(job.record, now=self.now).job)


def _repeated(job_id: JobId, *, same: bool) -> SubmitAnswer:
    return SubmitAnswer(receipt=SubmitReceipt.DUPLICATE if same else SubmitReceipt.CONFLICT, job_id=job_id)
