"""`hg.testing()`: an app whose jobs stay in memory, and a drain that runs them.

The box replaces the server for everything the client does with jobs and batches; the rest raises at once. It may be
used from several threads: a web framework's test client runs the app in another one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, cast
from uuid import UUID

from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.domain.ids import JobId, id_from_bytes, parse_job_id
from headgate.domain.jobs import SubmitAnswer, TopicRules, changed_rules
from headgate.domain.outcomes import Completed, ErrorInfo, Failed, Outcome, kind_of
from headgate.domain.states import SubmitReceipt
from headgate.domain.topic_rules import RULES
from headgate.domain.validation import MILLISECOND, shown
from headgate.sdk.client.frames import Answer
from headgate.sdk.codec import encode_result
from headgate.sdk.connection import Target
from headgate.sdk.errors import NotDrained
from headgate.sdk.options import HasId, Prepared
from headgate.sdk.outcomes import Outcome as WireOutcome
from headgate.sdk.outcomes import Seconds, delay_in_ms
from headgate.sdk.rpc import Answered, Asked, Method
from headgate.sdk.tasks import Task
from headgate.sdk.testing.attempts import Attempt, current
from headgate.sdk.testing.calls import BoxCalls
from headgate.sdk.testing.messages import outcome_of, receipt_of, submission_of
from headgate.sdk.testing.reports import report_attempt, settled_attempt
from headgate.sdk.testing.store import BoxStore, StoredJob
from headgate.sdk.testing.views import BoxJob, Drained, OutcomeName, Run
from headgate.sdk.testing.waits import Waits
from headgate.sdk.worker.attempt_log import Settled
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import producer_pb2 as producer

if TYPE_CHECKING:
    from headgate.sdk.app import Headgate

DRAIN_MAX: Final = 10_000
"""Attempts of one drain: more are taken for jobs that submit each other, or snooze, without end."""

Until = Seconds | datetime | HasId | Callable[[], bool]


class Box:
    """Replaces the server for one `Headgate` within a `with` block; see the package."""

    def __init__(self, app: Headgate, *, now: datetime | None = None) -> None:
        self._app = app
        self._lock = threading.RLock()
        self._store = BoxStore(_start_time(now), self._rules)
        self._store.on_end = self._ended
        self._calls = BoxCalls(self._store, on_cancel=self._cancelled)
        self._waits = Waits(self._store)
        self._attempts: list[Attempt] = []
        self._runs: list[Run] = []
        self._settled: list[Settled] = []  # to be logged, and reported to the hooks
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None  # while a drain runs
        self._outside: Target | None = None

    def __enter__(self) -> Self:
        connection = self._app._connection
        if connection.box is not None:
            raise RuntimeError("hg.testing() is in use already: leave the first `with` block, or use its box")
        self._outside = connection.swap(
            Target(addresses=connection.addresses, token=connection.token, tenant=connection.tenant, box=self)
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._outside is not None:
            self._app._connection.swap(self._outside)

    # --- looking -----------------------------------------------------------------------------------------------------

    @property
    def submitted(self) -> list[BoxJob]:
        """All jobs that were created, in order; a submit that met its own key or unique key created none."""
        with self._lock:
            return [self._view(job) for job in self._store.jobs.values()]

    def of(self, task: Task[Any, Any] | str) -> list[BoxJob]:
        """The jobs of one task or topic."""
        topic = task if isinstance(task, str) else task.topic
        return [job for job in self.submitted if job.topic == topic]

    def job(self, job: HasId | UUID | str) -> BoxJob:
        """One job, by its handle or id. Raises NotFound."""
        with self._lock:
            return self._view(self._store.get(_id_of(job)))

    @property
    def now(self) -> datetime:
        """The time of the box, in UTC: delays, retries and deadlines count by it."""
        return self._store.now

    # --- running -----------------------------------------------------------------------------------------------------

    async def drain(self, until: Until | None = None) -> Drained:
        """Run what is due, and what that submits, by priority and age, until nothing is left that can run.

        When nothing is due, the clock of the box moves to the next delay or retry: jobs end as they would in time. A
        handler that raises fails its attempt, as in a worker, and the drain continues; see `Drained.raise_for_errors`.

        `until` ends the drain sooner: at a time (`timedelta`, seconds from now, or `datetime`; 0 runs only what is due
        now), when a job has ended (its handle), or when a function returns True. Jobs of topics without a handler in
        this app stay as they are: see `complete` and `fail`.
        """
        if self._loop is not None:
            raise RuntimeError("drain() runs already: a handler cannot call it, nor a second task")
        limit, target, reached = self._end_of(until)
        self._runs, self._settled = [], []
        self._changed, self._loop = asyncio.Event(), asyncio.get_running_loop()
        try:
            await self._run_until(limit, reached)
            await self._end_waits()
        except BaseException:
            for attempt in self._attempts:
                await attempt.abandon()
            raise
        finally:
            self._loop, self._attempts = None, []
        with self._lock:
            if limit is not None:
                self._store.advance(limit)
            if reached is not None and not reached():
                reason = "until() is still false" if target is None else self._waits.reason(target, self._app.tasks)
                raise NotDrained(f"nothing is left to run, and {reason}")
        return Drained(runs=tuple(self._runs))

    def advance(self, by: Seconds) -> None:
        """Move the clock forward, and run nothing."""
        with self._lock:
            self._store.advance(self._store.now + delay_in_ms(by, field="by") * MILLISECOND)

    def complete(self, job: HasId | UUID | str, result: object = None) -> None:
        """Do as a worker elsewhere would: complete a pending job with this result."""
        self._settle_elsewhere(job, Completed(result=b"" if result is None else encode_result(result)))

    def fail(self, job: HasId | UUID | str, error: str = "failed", *, permanent: bool = False) -> None:
        """Do as a worker elsewhere would: fail an attempt at a pending job; `permanent` leaves no further attempts."""
        self._settle_elsewhere(job, Failed(error=ErrorInfo(type="", message=error), permanent=permanent))

    def _settle_elsewhere(self, job: HasId | UUID | str, outcome: Outcome) -> None:
        with self._lock:
            stored = self._store.get(_id_of(job))
            self._store.start(stored)
            self._store.settle(stored, outcome)

    async def _run_until(self, limit: datetime | None, reached: Callable[[], bool] | None) -> None:
        while True:
            await self._quiet()
            with self._lock:
                if reached is not None and reached():
                    return
                if len(self._runs) > DRAIN_MAX:
                    raise RuntimeError(
                        f"{DRAIN_MAX} attempts were made; check for jobs that submit each other or snooze without end, "
                        "or give drain(until=...)"
                    )
                job = self._store.claim(self._app.tasks.keys())
                if job is None:
                    if not self._move_clock(limit):
                        return
                    continue
                middleware = self._app._hooks.middleware
                attempt = Attempt(job, self._app.tasks[job.topic], middleware, now=self._store.now)
                self._attempts.append(attempt)
            attempt.start(self._finished)

    async def _quiet(self) -> None:
        """Wait until every handler has ended, or waits for the result of another job."""
        while any(attempt.is_busy for attempt in self._attempts):
            self._changed.clear()
            await self._changed.wait()
        settled, self._settled = self._settled, []
        for one in settled:
            await report_attempt(one, self._app._hooks)
        for attempt in self._attempts:
            if attempt.outcome is not None and attempt.fatal is not None:
                raise attempt.fatal
        self._attempts = [attempt for attempt in self._attempts if attempt.outcome is None]

    def _move_clock(self, limit: datetime | None) -> bool:
        """Move to the next time at which something happens; False if there is none before the limit."""
        times = [self._store.next_due(self._app.tasks.keys()), self._waits.next_end()]
        due = min((at for at in times if at is not None), default=None)
        if due is None or (limit is not None and due > limit):
            return False
        self._store.advance(due)
        self._waits.expire()
        return True

    async def _end_waits(self) -> None:
        """Handlers that still wait for a result get an error: nothing is left that could make it."""
        while self._attempts:
            with self._lock:
                self._waits.give_up(self._app.tasks)
            await self._quiet()

    def _finished(self, attempt: Attempt, reported: WireOutcome) -> None:
        outcome = outcome_of(reported)
        with self._lock:
            stored = attempt.stored
            self._store.settle(stored, outcome)
            view = self._view(stored)
            run = Run(
                job=view,
                attempt=attempt.job.attempt,
                at=attempt.at,
                outcome=cast("OutcomeName", kind_of(outcome).label),
                state=stored.state.label,
                next_at=None if stored.state.is_final else stored.record.run_at,
                error=attempt.job.error,
                message="" if isinstance(outcome, Completed) else view.last_error,
            )
            self._runs.append(run)
        self._settled.append(settled_attempt(attempt.job, reported, stored))
        self._notify()

    # --- the connection's side ---------------------------------------------------------------------------------------

    def submit(self, topic: str, ids: list[JobId], payloads: list[bytes], options: Prepared) -> Answer:
        """See `connection.Box`."""
        exceptions = {}
        with self._lock:
            for index, (job_id, payload) in enumerate(zip(ids, payloads, strict=True)):
                answer = self._submit(options.new_job(topic, job_id.bytes, payload), options)
                if answer is not None:
                    exceptions[index] = receipt_of(index, answer)
        return exceptions

    def _submit(self, job: producer.NewJob, options: Prepared) -> SubmitAnswer | None:
        try:
            asked = submission_of(job)
        except HeadgateError as error:
            return SubmitAnswer(receipt=SubmitReceipt.REFUSED, job_id=id_from_bytes(job.id), error=error)
        return self._store.submit(asked, options.given)

    def call(self, method: Method[Asked, Answered], request: Asked) -> Answered:
        """See `connection.Box`."""
        with self._lock:
            return self._calls.call(method, request)

    def wait(self, job_id: UUID, *, timeout: float) -> Future[jobs.JobInfo]:
        """See `connection.Box`: a handler that a drain runs may wait; any other caller is answered at once."""
        with self._lock:
            job = self._store.get(JobId(job_id))
            attempt = current.get()
            if job.state.is_final or attempt is None or attempt not in self._attempts or attempt.is_plain:
                plain = attempt is not None and attempt.is_plain
                return self._waits.now(job, self._app.tasks, plain=plain)
            future = self._waits.add(job, attempt, timedelta(seconds=timeout))
        self._notify()
        return future

    # --- inside ------------------------------------------------------------------------------------------------------

    def _notify(self) -> None:
        """Have the drain look at its attempts again; from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._changed.set)

    def _end_of(self, until: Until | None) -> tuple[datetime | None, StoredJob | None, Callable[[], bool] | None]:
        """When a drain ends: a time, or a job and a condition."""
        match until:
            case None:
                return None, None, None
            case datetime():
                if until.tzinfo is None:
                    raise InvalidInput("until", "must have a time zone", hint="datetime.now(UTC)")
                return until, None, None
            case bool():
                raise InvalidInput("until", f"must be a time, a job or a function, got {shown(until)}")
            case int() | float() | timedelta():
                return self._store.now + delay_in_ms(until, field="until") * MILLISECOND, None, None
            case _ if hasattr(until, "id"):
                job = self._store.get(_id_of(until))
                return None, job, lambda: job.state.is_final
            case _ if callable(until):
                return None, None, until
            case _:
                raise InvalidInput("until", f"must be a time, a job or a function, got {shown(until)}")

    def _ended(self, job: StoredJob) -> None:
        self._waits.ended(job)

    def _cancelled(self, job_id: JobId) -> None:
        for attempt in self._attempts:
            if attempt.stored.id == job_id and attempt.outcome is None:
                attempt.request_cancel()

    def _rules(self, topic: str) -> TopicRules:
        """The rules of a topic: what its handler declares, else the defaults."""
        task = self._app.tasks.get(topic)
        declared = {} if task is None else task.rules
        return changed_rules(TopicRules(), {name: value for name, value in declared.items() if name in RULES})

    def _view(self, job: StoredJob) -> BoxJob:
        return BoxJob(job, self._app.tasks, self._app._connection.encryption)


def _id_of(job: object) -> JobId:
    return parse_job_id(getattr(job, "id", job))


def _start_time(now: datetime | None) -> datetime:
    if now is not None and now.tzinfo is None:
        raise InvalidInput("now", "must have a time zone", hint="datetime(2026, 1, 1, tzinfo=UTC)")
    return datetime.now(UTC) if now is None else now.astimezone(UTC)
