"""Middleware: generator functions of the application that run around a handler, where the handler runs.

One coroutine serves all kinds of handlers. Around a plain handler it has nothing to wait for, so it is run to its end
by one step (`run_plain`).

A middleware cannot change what the handler returned or raised: code that catches an exception and forgets to raise it
again would turn a failure into a success. Only the exceptions made for it (`Nack`, `Snooze`, `Abandon`, `Fail`) decide
the outcome. Any other exception of a middleware is logged, and the handler runs as without it.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import logging
import operator
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from headgate.sdk.hooks import Middleware, name_of
from headgate.sdk.job import Job
from headgate.sdk.job_context import structlog_fields, structlog_is_loaded
from headgate.sdk.outcomes import HandlerVerdict

log = logging.getLogger("headgate.worker")

R = TypeVar("R")


def chain(registered: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """The middleware of a worker, outermost first: our own, then what is registered."""
    own: list[Middleware] = [structlog_fields] if structlog_is_loaded() else []
    if log.isEnabledFor(logging.DEBUG):
        own.append(log_started)
    return (*own, *registered)


def plain_only(middleware: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """What can run around a plain handler."""
    return tuple(one for one in middleware if not inspect.isasyncgenfunction(one))


def log_skipped(middleware: Sequence[Middleware]) -> None:
    """Log which middleware does not run around the plain handlers that the worker has."""
    for one in middleware:
        if inspect.isasyncgenfunction(one):
            log.info('middleware_skipped function=%s effect="it runs around async handlers only"', name_of(one))


def log_started(job: Job) -> Iterator[None]:
    """A middleware: log that a handler begins. Only part of the chain if that is logged at all."""
    log_begun(job)
    yield


def log_begun(job: Job) -> None:
    """Log that a handler begins."""
    log.debug("job_started topic=%s job_id=%s attempt=%s", job.topic, job.id, f"{job.attempt}/{job.max_attempts}")


async def run_around(
    middleware: Sequence[Middleware], job: Job, call: Callable[[], Any], *, awaited: bool
) -> tuple[Any, BaseException | None]:
    """Call a handler inside its middleware; gives its result and its error, for `result_of`.

    The error is no exception of this coroutine: a coroutine cannot raise StopIteration, and a plain handler can.
    """
    entered: list[tuple[Middleware, Any]] = []
    value: Any = None
    error: BaseException | None = None
    try:
        for function in middleware:
            await _enter(function, job, entered)
        value = await call() if awaited else call()
    except GeneratorExit:  # the event loop is thrown away
        raise
    except BaseException as raised:  # noqa: BLE001 -- given back below, when all middleware has seen it
        error = raised
    for function, generator in reversed(entered):
        error = await _leave(function, generator, job, value, error)
    try:
        return value, error
    finally:
        del error  # it refers to this frame


def result_of(value: Any, error: BaseException | None) -> Any:
    """Return the result of a handler, or raise its error."""
    if error is None:
        return value
    try:
        raise error
    finally:
        del error  # as above


def run_plain(around: Coroutine[Any, Any, R]) -> R:
    """Run `run_around` for a plain handler, which waits for nothing."""
    try:
        around.send(None)
    except StopIteration as ended:
        value: R = ended.value
        return value
    raise RuntimeError("a middleware of a plain handler has awaited something")


async def _enter(function: Middleware, job: Job, entered: list[tuple[Middleware, Any]]) -> None:
    """Run the part before `yield`; unless it raises, the part after it is to be run later."""
    try:
        generator: Any = function(job)
        if inspect.isasyncgenfunction(function):
            await generator.asend(None)
        else:
            next(generator)
    except (StopIteration, StopAsyncIteration):
        log.error('hook_failed hook=middleware function=%s error="it did not yield"', name_of(function))
    except HandlerVerdict:
        raise
    except (Exception, SystemExit):  # whatever a hook raises, the handler runs
        log.exception("hook_failed hook=middleware function=%s job_id=%s", name_of(function), job.id)
    else:
        entered.append((function, generator))


async def _leave(
    function: Middleware, generator: Any, job: Job, value: object, error: BaseException | None
) -> BaseException | None:
    """Run the part after `yield`; gives the error of the attempt."""
    trace = None if error is None else error.__traceback__
    try:
        if inspect.isasyncgenfunction(function):
            await (generator.asend(value) if error is None else generator.athrow(error))
            await generator.aclose()
        else:
            _ = generator.send(value) if error is None else generator.throw(error)
            generator.close()
        log.error('hook_failed hook=middleware function=%s error="it yielded twice"', name_of(function))
    except (StopIteration, StopAsyncIteration):
        pass
    except (HandlerVerdict, asyncio.CancelledError) as raised:
        if raised is not error:
            error, trace = raised, raised.__traceback__
    except BaseException as raised:  # the result or the error of the handler stays
        # A StopIteration leaves a generator as a RuntimeError that names it as its cause.
        converted = isinstance(error, StopIteration | StopAsyncIteration) and raised.__cause__ is error
        if raised is not error and not converted:
            log.exception("hook_failed hook=middleware function=%s job_id=%s", name_of(function), job.id)
    if error is not None:
        error.__traceback__ = trace  # without the frames through which it was passed
    return error


@functools.cache
def find_middleware(names: tuple[tuple[str, str], ...]) -> tuple[Middleware, ...]:
    """In a child process: the middleware of these modules and names."""
    found: list[Middleware] = [structlog_fields] if structlog_is_loaded() else []
    for module, name in names:
        try:
            found.append(operator.attrgetter(name)(importlib.import_module(module)))
        except Exception as error:  # noqa: BLE001 -- whatever an import raises, the handlers run
            log.error("hook_failed hook=middleware function=%s error=%s", name, error)
    return tuple(found)


def _is_at(module: str | None, name: str, one: Middleware) -> bool:
    """Whether a module has it under this name. A method of an object, or a partial, has the name of something else."""
    try:
        return bool(operator.attrgetter(name)(sys.modules[module or ""]) == one)
    except (AttributeError, KeyError):
        return False


def names_of(middleware: Sequence[Middleware]) -> tuple[tuple[str, str], ...]:
    """Module and name of each, for `find_middleware`; one that has none is logged and left out."""
    names: list[tuple[str, str]] = []
    for one in middleware:
        if one in (structlog_fields, log_started):
            continue
        module, name = getattr(one, "__module__", None), name_of(one)
        if module is None or not _is_at(module, name, one):
            log.warning(
                'middleware_skipped function=%s effect="it does not run around handlers in processes" '
                'hint="define it at the top of a module"',
                name,
            )
        else:
            names.append((module, name))
    return tuple(names)
