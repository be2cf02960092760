"""Functions of the application that the worker calls: around each handler, after failures, at its start and end.

| hook | called | where |
|---|---|---|
| `@hg.middleware` | around each handler: code before `yield`, and after it | where the handler runs |
| `@hg.on_failure` | after an attempt has failed, the last one included | a thread of the worker |
| `@hg.on_dead` | after a job is dead: no attempt is left, or none is wanted | a thread of the worker |
| `@hg.on_start` | before the worker asks for jobs | a thread of the worker |
| `@hg.on_stop` | after its last handler has ended | a thread of the worker |

Functions may be `async def` or `def`. Async ones run on the worker's event loop. One that raises is logged as
`hook_failed` and changes nothing; only `sys.exit()` in `on_start` keeps the worker from starting. Several of a kind are
called in the order in which they were registered.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from headgate.domain.errors import InvalidInput
from headgate.domain.validation import shown
from headgate.sdk.job import Job

if TYPE_CHECKING:
    from headgate.sdk.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed attempt, after the server has recorded it."""

    job: Job
    type: str
    """The type of the exception, with its module unless it is a built-in one."""
    message: str
    traceback: str
    """The frames of your code; "" if there are none."""
    exception: BaseException | None
    """The exception itself; None if the handler ran in another process, or did not raise."""
    dead: bool
    """True if the job is not tried again."""
    retry_at: datetime | None
    """When it is tried again, in UTC; None if it is dead, or the server did not acknowledge the report."""


Middleware: TypeAlias = Callable[[Job], Iterator[None] | AsyncIterator[None]]
MiddlewareT = TypeVar("MiddlewareT", bound=Middleware)
FailureHook: TypeAlias = Callable[[Failure], object]
FailureHookT = TypeVar("FailureHookT", bound=FailureHook)
WorkerHook: TypeAlias = "Callable[[Worker], object]"
WorkerHookT = TypeVar("WorkerHookT", bound="Callable[[Worker], object]")


class Hooks:
    """What was registered, by kind."""

    def __init__(self) -> None:
        self.middleware: list[Middleware] = []
        self.on_failure: list[FailureHook] = []
        self.on_dead: list[FailureHook] = []
        self.on_start: list[WorkerHook] = []
        self.on_stop: list[WorkerHook] = []

    @property
    def at_failures(self) -> bool:
        """Whether any function wants to know of failures."""
        return bool(self.on_failure or self.on_dead)


class HookDecorators:
    """The decorators of `Headgate` that register hooks."""

    def __init__(self) -> None:
        self._hooks = Hooks()

    def middleware(self, function: MiddlewareT) -> MiddlewareT:
        """Register a generator function to run around every handler; its one `yield` runs the handler.

        >>> @hg.middleware
        ... def timed(job: Job) -> Iterator[None]:
        ...     began = time.monotonic()
        ...     try:
        ...         yield
        ...     finally:
        ...         seconds.observe(time.monotonic() - began, job.topic)

        `yield` returns the result of the handler, or raises what the handler raised; both stay as they are. To decide
        the outcome, raise `Nack`, `Snooze`, `Abandon` or `Fail`; any other exception is logged and ignored. `def` runs
        around all handlers, `async def` around async handlers only. The first one registered is the outermost.
        """
        if not inspect.isgeneratorfunction(function) and not inspect.isasyncgenfunction(function):
            raise InvalidInput(
                "middleware",
                f"must be a function with one yield, got {shown(function)}",
                hint="write def or async def with a yield where the handler runs, and no @contextmanager",
            )
        self._hooks.middleware.append(function)
        return function

    def on_failure(self, function: FailureHookT) -> FailureHookT:
        """Register a function to be called with a `Failure` after each failed attempt, the last one included."""
        return _added(self._hooks.on_failure, function, "on_failure")

    def on_dead(self, function: FailureHookT) -> FailureHookT:
        """Register a function to be called with a `Failure` when a job is dead after an attempt of this worker."""
        return _added(self._hooks.on_dead, function, "on_dead")

    def on_start(self, function: WorkerHookT) -> WorkerHookT:
        """Register a function to be called with the `Worker` before it asks for jobs.

        An exception is logged, and the worker starts. To refuse to start, call `sys.exit("reason")`.
        """
        return _added(self._hooks.on_start, function, "on_start")

    def on_stop(self, function: WorkerHookT) -> WorkerHookT:
        """Register a function to be called with the `Worker` after its last handler has ended."""
        return _added(self._hooks.on_stop, function, "on_stop")


def name_of(function: Callable[..., object]) -> str:
    """How logs name a hook."""
    return getattr(function, "__qualname__", type(function).__qualname__)


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def _added(functions: list[Any], function: FunctionT, kind: str) -> FunctionT:
    if not callable(function):
        raise InvalidInput(kind, f"must be a function, got {shown(function)}", hint=f"write @hg.{kind} above it")
    functions.append(function)
    return function
