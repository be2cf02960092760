"""The client for code without an event loop: scripts, Django views, threads."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack, cast, overload
from uuid import UUID

from headgate.domain.errors import InvalidInput
from headgate.domain.ids import JobId, parse_job_id
from headgate.domain.validation import check_topic
from headgate.sdk.app import FLUSH_SECONDS, Headgate
from headgate.sdk.batches import BatchInfo
from headgate.sdk.codec import body_of
from headgate.sdk.handles import RESULT_TIMEOUT, JobInfo, SyncHandle, job_info
from headgate.sdk.io_thread import io_thread
from headgate.sdk.options import JobOptions, prepared
from headgate.sdk.submitting import Bound, submit_blocking, submit_many_blocking
from headgate.sdk.tasks import Calls, Task

if TYPE_CHECKING:
    from headgate.sdk.drivers import SyncTransaction

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class SyncHeadgate:
    """`Headgate`'s calls, blocking; safe to use from many threads at once.

    Over an existing client (`hg.sync`), or with an address of its own: `SyncHeadgate("queue:7070")`.
    """

    def __init__(
        self,
        app: Headgate | str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        ca: str | Path | None = None,
        tenant: str | None = None,
    ) -> None:
        """`token`, `ca` and `tenant` as for `Headgate`; not beside a client, which has its own."""
        if isinstance(app, Headgate):
            for name, given in (("token", token), ("ca", ca), ("tenant", tenant)):
                if given is not None:
                    raise InvalidInput(name, "is given beside a client, which has its own", hint=f"leave {name} out")
            self._app = app
        else:
            self._app = Headgate(app, token=token, ca=ca, tenant=tenant)
        self._connection = self._app._connection

    def submit(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]:
        """Store a job with these arguments; returns once it is committed. See `Task.submit`."""
        return task.submit_blocking(*args, **kwargs)

    def submit_in(
        self, connection: SyncTransaction, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> SyncHandle[R]:
        """Store a job in your own transaction. See `Task.submit_in`."""
        return task.submit_in(connection, *args, **kwargs)

    def submit_many_in(self, connection: SyncTransaction, task: Task[..., R], calls: Calls, /) -> list[SyncHandle[R]]:
        """Store many jobs in your own transaction. See `Task.submit_many_in`."""
        return task.submit_many_in(connection, calls)

    def submit_many(self, task: Task[..., R], calls: Calls) -> list[SyncHandle[R]]:
        """Store many jobs; returns once all are committed. See `Task.submit_many`."""
        return task.submit_many_blocking(calls)

    def submit_to(self, topic: str, payload: object = b"", **options: Unpack[JobOptions]) -> SyncHandle[Any]:
        """Store a job for a topic that is handled elsewhere. Bytes are sent as they are, all else as JSON."""
        return submit_blocking(self._connection, check_topic(topic), body_of(payload), prepared(**options), returns=Any)

    def submit_to_in(
        self, connection: SyncTransaction, topic: str, payload: object = b"", **options: Unpack[JobOptions]
    ) -> SyncHandle[Any]:
        """Store a job for a topic that is handled elsewhere, in your own transaction. See `Task.submit_in`."""
        return self._app.submit_in(connection, topic, payload, **options)

    def submit_many_to(
        self, topic: str, payloads: Iterable[object], **options: Unpack[JobOptions]
    ) -> list[SyncHandle[Any]]:
        """Store many jobs for a topic that is handled elsewhere."""
        bodies = map(body_of, payloads)
        return submit_many_blocking(self._connection, check_topic(topic), bodies, prepared(**options), returns=Any)

    def submit_batch(self, jobs: Iterable[Bound], *, name: str = "", on_done: Bound | None = None) -> JobId:
        """Open a batch of these jobs (`task.bind(...)`), store them all and seal it; returns the batch's id."""
        return self.wait(self._app.submit_batch(list(jobs), name=name, on_done=on_done)).id

    def batch_status(self, batch_id: UUID | str) -> BatchInfo:
        """Read a batch and the states of its members. Raises NotFound."""
        return self.wait(self._app.batch_status(batch_id))

    def get(self, job_id: UUID | str, *, payload: bool = False, result: bool = False) -> JobInfo:
        """Read a job; its payload and result on request: `info.payload`, `info.result(type=...)`. Raises NotFound."""
        found = self._connection.start_get(parse_job_id(job_id), payload=payload, result=result).result()
        return job_info(found, self._connection.encryption)

    @overload
    def result(self, job_id: UUID | str, timeout: float = ...) -> Any: ...
    @overload
    def result(self, job_id: UUID | str, timeout: float = ..., *, type: type[T]) -> T: ...
    def result(self, job_id: UUID | str, timeout: float = RESULT_TIMEOUT, *, type: object = None) -> object:  # noqa: A002
        """Wait until a job is finished, and give its result decoded from JSON, as `type` if given."""
        handle: SyncHandle[Any] = SyncHandle(self._connection, parse_job_id(job_id), Any)
        return handle.result(timeout, type=cast("Any", type))

    def wait(self, call: Coroutine[Any, Any, T]) -> T:
        """Make one call of the async client, blocking this thread: `hg.sync.wait(hg.admin....)`.

        For calls of this client only: they run on the SDK's own loop, which nothing else may block.
        """
        return asyncio.run_coroutine_threadsafe(call, io_thread().loop).result()

    def close(self, *, flush: float = FLUSH_SECONDS) -> None:
        """Wait up to `flush` seconds for unanswered submits, and close."""
        if ending := self._connection.start_close(flush=flush):
            ending.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
