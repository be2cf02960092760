"""A registered function: how to submit it, and what a worker needs to run it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Self, TypeAlias, TypeVar, Unpack, cast, overload

from headgate.domain.errors import InvalidInput
from headgate.domain.validation import check_payload, check_topic, shown
from headgate.sdk.arguments import Arguments
from headgate.sdk.connection import Connection
from headgate.sdk.errors import PayloadError
from headgate.sdk.handles import JobHandle, SyncHandle
from headgate.sdk.options import JobOptions, Prepared
from headgate.sdk.outcomes import Seconds, delay_in_ms
from headgate.sdk.submitting import Bound, submit, submit_blocking, submit_many, submit_many_blocking

if TYPE_CHECKING:
    from headgate.sdk.admin.schedules import ScheduleInfo
    from headgate.sdk.drivers import AsyncTransaction, SyncTransaction
    from headgate.sdk.schedule_specs import ScheduleOptions, When

P = ParamSpec("P")
R = TypeVar("R")
C = ParamSpec("C")
"""How the function itself is called: its parameters with its `Job`."""

Calls: TypeAlias = Iterable[Mapping[str, object] | Sequence[object]]
"""Arguments of many jobs, each by name or by position."""
RunIn = Literal["loop", "thread", "process"]
BadPayload = Literal["fail", "retry"]


class Task(Generic[P, R]):
    """One topic and the function that handles its jobs.

    Called directly, as in `await send_email("a@b.example")`, it is the function as it was written (`function`), run
    here and now, without a server: a `Job` parameter gets what the caller passes. `submit(...)` takes the function's
    own arguments (without its `Job` parameter) and is typed by them. Options are given by `with_options(...)`, which is
    typed, or at once as `submit(..., options=dict(...))`, which type checkers do not see: a ParamSpec cannot have
    another keyword.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        function: Callable[..., object],
        *,
        run_in: RunIn | None = None,
        time_limit: Seconds | None = None,
        bad_payload: BadPayload = "fail",
        options: Prepared,
        rules: Mapping[str, object] | None = None,
    ) -> None:
        """Raises InvalidInput for a function that could not be run or submitted."""
        self.topic = check_topic(topic)
        if isinstance(function, Task):
            raise InvalidInput(
                self.topic,
                f"needs a function to handle it, and {function.name} is a task already",
                hint=f"register {function.name}.function",
            )
        if not callable(function):
            raise InvalidInput(self.topic, f"needs a function to handle it, got {shown(function)}")
        self.function = function
        self.name = getattr(function, "__qualname__", type(function).__qualname__)
        self.run_in = _where(function, run_in, self.name)
        self.time_limit = _limit(time_limit)
        if bad_payload not in ("fail", "retry"):
            raise InvalidInput("bad_payload", f'must be "fail" or "retry", got {shown(bad_payload)}')
        self.bad_payload: BadPayload = bad_payload
        self.rules = dict(rules or {})  # what it declares for its topic
        self.arguments = Arguments(function, name=self.name.rpartition(".")[2])
        if "options" in inspect.signature(function).parameters:
            raise InvalidInput(self.name, "has a parameter named options, which submit() keeps for itself")
        self._connection = connection
        self.encryption = connection.encryption  # here too: a worker looks at it for every job
        self._options = options
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", self.name)
        self.__wrapped__ = function  # inspect.signature and the like see the function

    def __repr__(self) -> str:
        return f"<Task {self.topic}: {self.name}>"

    def with_options(self, **options: Unpack[JobOptions]) -> Self:
        """The same task with other options for its submits.

        >>> await send_email.with_options(priority=10, delay=60).submit("a@b.example", subject="Hi")
        """
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._options = self._options.over(options)
        return twin

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound:
        """The task with these arguments, for `hg.batch(on_done=...)` and `hg.submit_batch(...)`; sends nothing."""
        options = self._chosen(kwargs) if "options" in kwargs else self._options
        return Bound(self.topic, self.arguments.payload_of_call(args, kwargs), options, self.arguments.returns)

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job with these arguments; returns once it is committed.

        Raises PayloadError before anything is sent if the arguments do not fit the function. A broken connection is
        ridden out for `timeout` seconds (an option, 30 by default); then NotConnected or NotAcknowledged.
        """
        options = self._chosen(kwargs) if "options" in kwargs else self._options
        payload = self.arguments.payload_of_call(args, kwargs)
        return await submit(self._connection, self.topic, payload, options, returns=self.arguments.returns)

    @overload
    def submit_in(
        self, connection: AsyncTransaction, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, JobHandle[R]]: ...
    @overload
    def submit_in(self, connection: SyncTransaction, /, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]: ...
    def submit_in(
        self, connection: AsyncTransaction | SyncTransaction, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, JobHandle[R]] | SyncHandle[R]:
        """Store a job in your own transaction: it exists if and only if you commit, and is then picked up at once.

        `connection` is a connection or session of asyncpg, psycopg 3, SQLAlchemy 2 or Django, to the database that has
        Headgate's schema. Await the call if you await those of the connection. The handle can be used after the commit.

        >>> async with session.begin():
        ...     session.add(order)
        ...     handle = await send_receipt.submit_in(session, order.id)
        """
        from headgate.sdk.transactions import submit_in

        options = self._chosen(kwargs) if "options" in kwargs else self._options
        payload = self.arguments.payload_of_call(args, kwargs)
        return submit_in(self._connection, connection, self.topic, payload, options, returns=self.arguments.returns)

    @overload
    def submit_many_in(
        self, connection: AsyncTransaction, calls: Calls, /
    ) -> Coroutine[Any, Any, list[JobHandle[R]]]: ...
    @overload
    def submit_many_in(self, connection: SyncTransaction, calls: Calls, /) -> list[SyncHandle[R]]: ...
    def submit_many_in(
        self, connection: AsyncTransaction | SyncTransaction, calls: Calls, /
    ) -> Coroutine[Any, Any, list[JobHandle[R]]] | list[SyncHandle[R]]:
        """Store many jobs in your own transaction, in few statements: all of them if you commit, else none.

        `connection` as for `submit_in`, `calls` as for `submit_many`.
        """
        from headgate.sdk.transactions import submit_many_in

        payloads = self._payloads(calls)
        return submit_many_in(
            self._connection, connection, self.topic, payloads, self._options, returns=self.arguments.returns
        )

    async def submit_raw(self, payload: bytes) -> JobHandle[R]:
        """Store a job with this body, for functions that take only a Job."""
        body = check_payload(payload)
        return await submit(self._connection, self.topic, body, self._options, returns=self.arguments.returns)

    @property
    def options(self) -> Prepared:
        """The options of its submits."""
        return self._options

    def payload_of(self, arguments: Mapping[str, object]) -> bytes:
        """The body of a job with these arguments by name; empty for a function that takes nothing but its Job."""
        return b"" if self.arguments.raw and not arguments else self.arguments.payload_of_named(arguments)

    async def schedule(
        self,
        name: str,
        *,
        arguments: Mapping[str, object] | None = None,
        version: int | None = None,
        options: ScheduleOptions | None = None,
        **when: Unpack[When],
    ) -> ScheduleInfo:
        """Create or replace a schedule that submits this task with these arguments; see `hg.admin.schedules.put`.

        >>> await send_report.schedule("monday", arguments={"week": "last"}, cron="0 7 * * 1", zone="Europe/Zurich")
        """
        from headgate.sdk.admin.schedules import Schedules
        from headgate.sdk.schedule_specs import spec, timing

        made = spec(self.topic, timing(**when), self.payload_of(arguments or {}), options or {}, defaults=self._options)
        info, _ = await Schedules(self._connection).put_spec(name, made, version=version)
        return info

    async def submit_many(self, calls: Calls) -> list[JobHandle[R]]:
        """Store many jobs in few frames; returns once all are committed.

        Each call is a mapping of arguments by name or a tuple of positional ones. Not atomic: if some are refused,
        SubmitManyError names them, and the others exist.
        """
        return await submit_many(
            self._connection, self.topic, self._payloads(calls), self._options, returns=self.arguments.returns
        )

    # --- without an event loop: SyncHeadgate calls these --------------------------------------------------------------

    def submit_blocking(self, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]:
        """As `submit`, blocking this thread."""
        options = self._chosen(kwargs) if "options" in kwargs else self._options
        payload = self.arguments.payload_of_call(args, kwargs)
        return submit_blocking(self._connection, self.topic, payload, options, returns=self.arguments.returns)

    def submit_many_blocking(self, calls: Calls) -> list[SyncHandle[R]]:
        """As `submit_many`, blocking this thread."""
        return submit_many_blocking(
            self._connection, self.topic, self._payloads(calls), self._options, returns=self.arguments.returns
        )

    def _chosen(self, kwargs: dict[str, Any]) -> Prepared:
        given = kwargs.pop("options")
        if given is None:
            return self._options
        if not isinstance(given, Mapping):
            raise InvalidInput("options", f"must be a dict, got {shown(given)}")
        return self._options.over(cast("JobOptions", dict(given)))

    def _payloads(self, calls: Calls) -> Iterator[bytes]:
        by_name, by_place = self.arguments.payload_of_named, self.arguments.payload_of_call
        for at, call in enumerate(calls):
            if isinstance(call, Mapping) and not self.arguments.raw:
                yield by_name(call)
            elif isinstance(call, bytes) and self.arguments.raw:
                yield check_payload(call)
            elif isinstance(call, tuple | list):
                yield by_place(tuple(call), {})
            else:
                raise PayloadError(f"calls[{at}]", f"must be a dict or a tuple of arguments, got {shown(call)}")


class AsyncTask(Task[P, R], Generic[P, R, C]):
    """The task of an `async def`."""

    def __call__(self, *args: C.args, **kwargs: C.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function itself; nothing is submitted."""
        return cast("Coroutine[Any, Any, R]", self.function(*args, **kwargs))


class PlainTask(Task[P, R], Generic[P, R, C]):
    """The task of a `def`."""

    def __call__(self, *args: C.args, **kwargs: C.kwargs) -> R:
        """Call the function itself, in this thread; nothing is submitted."""
        return cast("R", self.function(*args, **kwargs))


def _limit(given: Seconds | None) -> float | None:
    """Seconds that one attempt may take; None for no limit."""
    if given is None:
        return None
    seconds = delay_in_ms(given, field="time_limit") / 1000
    if not seconds:
        raise InvalidInput("time_limit", f"must be more than 0 seconds, got {shown(given)}")
    return seconds


def is_async(function: Callable[..., object]) -> bool:
    """True for what returns a coroutine: an `async def`, also in a partial or as the `__call__` of an object."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(_called(function))


def _called(function: Callable[..., object]) -> object:
    plain = inspect.isroutine(function) or hasattr(function, "func")
    return function if plain else getattr(type(function), "__call__", None)  # noqa: B004 - what is called, not whether


def _where(function: Callable[..., object], run_in: RunIn | None, name: str) -> RunIn:
    called = _called(function)
    awaited = is_async(function)
    if inspect.isasyncgenfunction(called) or inspect.isgeneratorfunction(called):
        raise InvalidInput(name, "is a generator; a handler returns its result once")
    if run_in is None:
        return "loop" if awaited else "thread"
    if run_in not in ("loop", "thread", "process"):
        raise InvalidInput("run_in", f'must be "loop", "thread" or "process", got {shown(run_in)}')
    if awaited and run_in != "loop":
        raise InvalidInput(name, f"is async and cannot run in a {run_in}; write it with def, or leave run_in out")
    if not awaited and run_in == "loop":
        raise InvalidInput(name, "is not async: on the loop it would block all others; write it with async def")
    if run_in == "process" and ("<" in name or getattr(function, "__module__", None) is None):
        raise InvalidInput(name, "cannot be found by name from another process; define it at the top of a module")
    return run_in
