"""`Headgate`: the object users make once, to register functions, submit jobs and run a worker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypedDict, TypeVar, Unpack, cast, overload
from uuid import UUID

from headgate.domain.errors import InvalidInput
from headgate.domain.ids import parse_job_id
from headgate.domain.limits import BATCH_EXPIRY_DEFAULT
from headgate.domain.validation import check_tenant, check_topic
from headgate.sdk.addresses import addresses_of, trust_of
from headgate.sdk.background import store_declared
from headgate.sdk.batches import Batch, BatchInfo, batch_status, seal_batch
from headgate.sdk.codec import body_of
from headgate.sdk.connection import TENANT, Connection
from headgate.sdk.encryption import Encryption, encryption_of
from headgate.sdk.handles import RESULT_TIMEOUT, JobHandle, JobInfo, SyncHandle, job_info
from headgate.sdk.hooks import HookDecorators
from headgate.sdk.io_thread import new_loop
from headgate.sdk.job import Job
from headgate.sdk.options import JobOptions, prepared
from headgate.sdk.outcomes import Seconds
from headgate.sdk.rules import Declared, HandlerOptions, check_source, declare, handler_options, source_of
from headgate.sdk.schedule_specs import ScheduleOptions, timing
from headgate.sdk.schedules import DeclaredSchedule, ScheduleDecorator, SyncReport, sync
from headgate.sdk.submitting import Bound, submit, submit_many
from headgate.sdk.tasks import AsyncTask, BadPayload, PlainTask, RunIn, Task, is_async

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from headgate.sdk.admin import Admin
    from headgate.sdk.drivers import AsyncTransaction, SyncTransaction
    from headgate.sdk.sync import SyncHeadgate
    from headgate.sdk.testing import Box
    from headgate.sdk.worker import Worker, WorkerOptions
    from headgate.wire import topics_pb2 as pb

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

FLUSH_SECONDS = 5.0
INTERRUPTED_FLUSH_SECONDS = 0.5


class _Kind(TypedDict):
    """How a task's handler is run."""

    run_in: RunIn | None
    time_limit: Seconds | None
    bad_payload: BadPayload


class Headgate(HookDecorators):
    """A client of Headgate and the registry of its jobs.

    `url` names one or several servers (`host:port`, `https://host:port`; default HEADGATE_URL, else 127.0.0.1:7070) and
    `token` is what they know you by (default HEADGATE_TOKEN). For TLS with a private authority, `ca` names its PEM file
    (default HEADGATE_CA); `certificate` and `key` (HEADGATE_CERT, HEADGATE_KEY) are for servers that ask for yours.
    `tenant` (default HEADGATE_TENANT, else "default") is for `submit_in` only: servers take it from the token.
    `app` names this program where what its handlers declare is stored (default: the module that they share).
    `encryption` has the keys by which payloads, results and errors are encrypted (default HEADGATE_ENCRYPTION_KEYS).
    Nothing is opened before the first submit, read or work.
    It may be used from any thread and any number of event loops, and in the children of a fork that came before its
    first use.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        ca: str | Path | None = None,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        tenant: str | None = None,
        app: str | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        super().__init__()
        secret = os.environ.get("HEADGATE_TOKEN", "") if token is None else token
        addresses = addresses_of(url, trust_of(ca, certificate, key))
        if ca and not any(address.tls for address in addresses):
            raise InvalidInput("ca", "is given, but no address is by TLS", hint="write https://host:port")
        of_tenant = check_tenant(os.environ.get("HEADGATE_TENANT", TENANT) if tenant is None else tenant)
        self._connection = Connection(addresses, token=secret, tenant=of_tenant, encryption=encryption_of(encryption))
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._schedules: dict[str, DeclaredSchedule] = {}
        self._app = check_source(app)

    # --- registering -------------------------------------------------------------------------------------------------

    def job(
        self,
        topic: str,
        *,
        run_in: RunIn | None = None,
        time_limit: Seconds | None = None,
        bad_payload: BadPayload = "fail",
        **options: Unpack[HandlerOptions],
    ) -> JobDecorator:
        """Register the decorated function as the handler of `topic`; it becomes a `Task`, which can be submitted.

        `async def` runs on the worker's event loop, `def` in a thread, `def` with `run_in="process"` in a process
        of its own. A parameter annotated `Job` gets the context.

        `options` are of two kinds (`HandlerOptions`). Rules and limits of the topic, such as `max_attempts`, `retry`
        and `max_running`, are stored by the worker when it starts, and count for every producer: SQL, the command line,
        other languages. Operators can change them (`headgate topic set`). The others, such as `tags`, are defaults of
        what is submitted through this task.

        `time_limit` bounds one attempt, from the moment its handler begins. Then an async handler is cancelled, one in
        a process interrupted and, if need be, its process ended; the attempt fails as TimeLimitExceeded and is retried
        by its policy. A thread can only be asked (`job.cancelled`): if it does not end, the attempt fails anyway,
        and its slot is lost until the function returns.

        A payload that does not fit the parameters never will: the job is dead at once. With `bad_payload="retry"` it
        is retried like any failure, for a new version of the worker to accept it.
        """
        if callable(topic):  # @hg.job without parentheses
            name = getattr(topic, "__name__", "topic")
            raise InvalidInput("topic", "is missing", hint=f'write @hg.job("{name}")')
        check_topic(topic)
        kind = _Kind(run_in=run_in, time_limit=time_limit, bad_payload=bad_payload)
        return JobDecorator(self, topic, kind, handler_options(options, time_limit=time_limit))

    def register(
        self,
        topic: str,
        function: Callable[..., object],
        *,
        run_in: RunIn | None = None,
        time_limit: Seconds | None = None,
        bad_payload: BadPayload = "fail",
        **options: Unpack[HandlerOptions],
    ) -> Task[..., Any]:
        """As the decorator, for a function defined elsewhere."""
        kind = _Kind(run_in=run_in, time_limit=time_limit, bad_payload=bad_payload)
        return self._add(topic, function, kind, handler_options(options, time_limit=time_limit))

    def cron(
        self,
        expression: str,
        *,
        zone: str = "UTC",
        name: str | None = None,
        arguments: Mapping[str, object] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleDecorator:
        """Above `@hg.job(...)`: submit the task at the times of a cron expression in a time zone.

        `name` is the topic if left out; `arguments` are the function's. See `ScheduleOptions` for what overlaps or was
        missed. Stored by the worker when it starts, or by `sync_schedules`.
        """
        return ScheduleDecorator(self._schedules, timing(cron=expression, zone=zone), name, arguments, options)

    def every(
        self,
        interval: Seconds | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        anchor: datetime | None = None,
        name: str | None = None,
        arguments: Mapping[str, object] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleDecorator:
        """Above `@hg.job(...)`: submit the task at `anchor` (1970) + k × interval; otherwise as `cron`."""
        span = interval if interval is not None else timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        return ScheduleDecorator(self._schedules, timing(every=span, anchor=anchor), name, arguments, options)

    async def sync_schedules(self, *, source: str = "", prune: bool = False) -> SyncReport:
        """Store the schedules declared in code; with `prune`, delete those of `source` that no longer are.

        `source` is the name of this program (default: `app`, else the module that its handlers share).
        """
        return await sync(self._connection, self._schedules, source=source or self._source, prune=prune)

    @property
    def tasks(self) -> dict[str, Task[Any, Any]]:
        """The registered tasks by topic."""
        return dict(self._tasks)

    def _add(self, topic: str, function: Callable[..., object], kind: _Kind, declared: Declared) -> Task[..., Any]:
        rules, options = declared
        made = AsyncTask if is_async(function) else PlainTask
        task: Task[..., Any] = made(self._connection, topic, function, **kind, options=options, rules=rules)
        if other := self._tasks.get(task.topic):
            raise InvalidInput("topic", f'"{topic}" is handled by {other.name} already', hint="a topic has one handler")
        self._tasks[task.topic] = task
        return task

    # --- submitting and reading --------------------------------------------------------------------------------------

    async def submit(self, topic: str, payload: object = b"", **options: Unpack[JobOptions]) -> JobHandle[Any]:
        """Store a job for a topic that is handled elsewhere. Bytes are sent as they are, all else as JSON."""
        return await submit(self._connection, check_topic(topic), body_of(payload), prepared(**options), returns=Any)

    @overload
    def submit_in(
        self, connection: AsyncTransaction, topic: str, payload: object = ..., **options: Unpack[JobOptions]
    ) -> Coroutine[Any, Any, JobHandle[Any]]: ...
    @overload
    def submit_in(
        self, connection: SyncTransaction, topic: str, payload: object = ..., **options: Unpack[JobOptions]
    ) -> SyncHandle[Any]: ...
    def submit_in(
        self,
        connection: AsyncTransaction | SyncTransaction,
        topic: str,
        payload: object = b"",
        **options: Unpack[JobOptions],
    ) -> Coroutine[Any, Any, JobHandle[Any]] | SyncHandle[Any]:
        """Store a job for a topic that is handled elsewhere, in your own transaction; see `Task.submit_in`."""
        from headgate.sdk.transactions import submit_in

        body = body_of(payload)
        return submit_in(self._connection, connection, check_topic(topic), body, prepared(**options), returns=Any)

    @overload
    def submit_many_in(
        self, connection: AsyncTransaction, topic: str, payloads: Iterable[object], **options: Unpack[JobOptions]
    ) -> Coroutine[Any, Any, list[JobHandle[Any]]]: ...
    @overload
    def submit_many_in(
        self, connection: SyncTransaction, topic: str, payloads: Iterable[object], **options: Unpack[JobOptions]
    ) -> list[SyncHandle[Any]]: ...
    def submit_many_in(
        self,
        connection: AsyncTransaction | SyncTransaction,
        topic: str,
        payloads: Iterable[object],
        **options: Unpack[JobOptions],
    ) -> Coroutine[Any, Any, list[JobHandle[Any]]] | list[SyncHandle[Any]]:
        """Store many jobs for a topic that is handled elsewhere, in your own transaction; see `Task.submit_many_in`."""
        from headgate.sdk.transactions import submit_many_in

        bodies = map(body_of, payloads)
        return submit_many_in(
            self._connection, connection, check_topic(topic), bodies, prepared(**options), returns=Any
        )

    async def submit_many(
        self, topic: str, payloads: Iterable[object], **options: Unpack[JobOptions]
    ) -> list[JobHandle[Any]]:
        """Store many jobs for a topic that is handled elsewhere; see `Task.submit_many`."""
        bodies = map(body_of, payloads)
        return await submit_many(self._connection, check_topic(topic), bodies, prepared(**options), returns=Any)

    def batch(
        self,
        name: str = "",
        *,
        on_done: Bound | None = None,
        needs: Literal["succeeded", "ended"] = "ended",
        on_failure: Literal["cancel", "ignore", "block"] = "cancel",
        expires_in: Seconds = BATCH_EXPIRY_DEFAULT,
        id: UUID | str | None = None,  # noqa: A002
    ) -> Batch:
        """A new batch: jobs submitted together, and `on_done` (`task.bind(...)`), which runs when all have ended.

        `needs="succeeded"` lets `on_done` run only if all members succeed; `on_failure` says what becomes of it else:
        cancel, ignore, block. Not sealed within `expires_in`: closed, and `on_done` cancelled.
        """
        return Batch(
            self._connection,
            name=name,
            on_done=on_done,
            needs=needs,
            on_failure=on_failure,
            expires_in=expires_in,
            id=id,
        )

    async def submit_batch(self, jobs: Iterable[Bound], *, name: str = "", on_done: Bound | None = None) -> Batch:
        """Open a batch of these jobs (`task.bind(...)`), store them all and seal it."""
        async with self.batch(name, on_done=on_done) as batch:
            await batch.submit_bound(jobs)
        return batch

    async def batch_status(self, batch_id: UUID | str) -> BatchInfo:
        """Read a batch and the states of its members. Raises NotFound."""
        return await batch_status(self._connection, batch_id)

    async def seal_batch(self, batch_id: UUID | str) -> BatchInfo:
        """Seal a batch that was opened elsewhere, for example by a process that has ended. Raises NotFound."""
        return await seal_batch(self._connection, batch_id)

    async def get(self, job_id: UUID | str, *, payload: bool = False, result: bool = False) -> JobInfo:
        """Read a job; its payload and result on request: `info.payload`, `info.result(type=...)`. Raises NotFound."""
        found = self._connection.start_get(parse_job_id(job_id), payload=payload, result=result)
        return job_info(await asyncio.wrap_future(found), self._connection.encryption)

    @overload
    async def wait_result(self, job_id: UUID | str, timeout: float = ...) -> Any: ...  # noqa: ASYNC109
    @overload
    async def wait_result(self, job_id: UUID | str, timeout: float = ..., *, type: type[T]) -> T: ...  # noqa: ASYNC109
    async def wait_result(
        self,
        job_id: UUID | str,
        timeout: float = RESULT_TIMEOUT,  # noqa: ASYNC109
        *,
        type: object = None,  # noqa: A002
    ) -> object:
        """Wait until a job is finished, and give its result decoded from JSON, as `type` if given.

        Raises JobDead, JobCancelled or ResultTimeout.
        """
        return await self.handle(job_id).result(timeout, type=cast("Any", type))

    def handle(self, job_id: UUID | str) -> JobHandle[Any]:
        """A handle on a job by its id; sends nothing."""
        return JobHandle(self._connection, parse_job_id(job_id), Any)

    @property
    def admin(self) -> Admin:
        """Administration: pause, redrive, schedules, limits and so on."""
        from headgate.sdk.admin import Admin

        return Admin(self._connection)

    @property
    def sync(self) -> SyncHeadgate:
        """The same client for code without an event loop."""
        from headgate.sdk.sync import SyncHeadgate

        return SyncHeadgate(self)

    async def close(self, *, flush: float = FLUSH_SECONDS) -> None:
        """Wait up to `flush` seconds for unanswered submits, and close. Harmless when repeated."""
        if ending := self._connection.start_close(flush=flush):
            await asyncio.wrap_future(ending)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Ctrl-C and a cancelled task do not wait for a server that does not answer.
        hurried = error is not None and not isinstance(error, Exception)
        await self.close(flush=INTERRUPTED_FLUSH_SECONDS if hurried else FLUSH_SECONDS)

    # --- working -----------------------------------------------------------------------------------------------------

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """A worker for the registered tasks, to be run and stopped by you; see `WorkerOptions`."""
        from headgate.sdk.worker import Worker

        worker = Worker(self._connection, self._tasks, self._hooks, **options)
        worker.beside = lambda: store_declared(self, worker)
        return worker

    async def _declare(self, worker: Worker) -> list[pb.DeclaredTopic]:
        return await declare(self._connection, worker.tasks, source=self._source, worker_id=worker.worker_id)

    @property
    def _source(self) -> str:
        return source_of(self._tasks.values(), self._app)

    async def work(self, **options: Unpack[WorkerOptions]) -> None:
        """Run the registered tasks until this call is cancelled, or fails with an error that a retry cannot fix."""
        await self.worker(**options).run()

    def run_worker(self, **options: Unpack[WorkerOptions]) -> None:
        """Run a worker on its own event loop until SIGTERM or SIGINT, then finish running jobs.

        The process ends even if a handler does not: with exit code 1, some seconds after its job was abandoned.
        """
        from headgate.sdk.worker.forced_exit import forced_exit_after

        worker = self.worker(**options)
        leaving = forced_exit_after(worker.ended, overdue=lambda: worker.overdue, more_seconds=worker.end_seconds)
        with leaving, asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(worker.run(signals=True))

    # --- tracing -----------------------------------------------------------------------------------------------------

    def tracing(self, provider: TracerProvider | None = None) -> None:
        """Make OpenTelemetry spans of submits and of handlers, one trace across processes.

        Call it once, before the worker starts. Needs `pip install headgate[tracing]` and a tracer provider of your
        application; `provider` is used instead of it, but not in handlers that run in processes.
        """
        if self._connection.tracing is not None:
            raise InvalidInput("tracing", "is on already", hint="call hg.tracing() once")
        try:
            from headgate.sdk.tracing import Tracing
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith("opentelemetry"):
                raise
            raise InvalidInput(
                "tracing", "needs OpenTelemetry, which is not installed", hint="run: pip install 'headgate[tracing]'"
            ) from error
        self._connection.tracing = tracing = Tracing(provider)
        self.middleware(tracing.middleware)

    # --- tests -------------------------------------------------------------------------------------------------------

    def testing(self, *, now: datetime | None = None) -> Box:
        """`with hg.testing() as box:` keeps jobs in memory: submits go to the box, and `await box.drain()` runs them.

        Nothing leaves the box: what needs a server raises OutsideBox at once. Its clock starts at `now` (the current
        time) and moves only in `drain` and `advance`.
        """
        from headgate.sdk.testing import Box

        return Box(self, now=now)


class JobDecorator:
    """What `hg.job(...)` returns: turns a function into a `Task` typed by the function's own parameters.

    A leading positional `Job` parameter is taken off the type of `submit`. For a keyword one, type checkers need its
    default: `*, job: Job = this_job`. Called directly, the task has the type of the function as it was written.
    """

    def __init__(self, app: Headgate, topic: str, kind: _Kind, declared: Declared) -> None:
        self._app, self._topic, self._kind, self._declared = app, topic, kind, declared

    # The overlaps are meant: what returns a coroutine is a case of what returns anything, and the first match counts.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Job, P], Coroutine[Any, Any, R]]
    ) -> AsyncTask[P, R, Concatenate[Job, P]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Job, P], R]) -> PlainTask[P, R, Concatenate[Job, P]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> AsyncTask[P, R, P]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> PlainTask[P, R, P]: ...
    def __call__(self, function: Callable[..., Any]) -> Task[..., Any]:
        """Register the function."""
        return self._app._add(self._topic, function, self._kind, self._declared)
