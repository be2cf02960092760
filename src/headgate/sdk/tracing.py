"""OpenTelemetry spans from a submit to the handler, across processes: `hg.tracing()`.

| span | kind | where | parent |
|---|---|---|---|
| `send TOPIC` | producer | the process that submits | the current span |
| `dispatch TOPIC` | consumer | the server, if it traces; else the worker: until the handler starts | `send` |
| `process TOPIC` | consumer | around the handler | `dispatch` |

The context travels in the headers of the job, as the propagators of the application write it (by default `traceparent`
and `baggage` of the W3C). A retry is another `dispatch` and `process` below the same `send`. Jobs of one `submit_many`
share a `send`: each starts a trace of its own with a link to it, since a trace of ten thousand jobs shows nothing.

Only this module imports OpenTelemetry, and only `hg.tracing()` imports this module. Without it a submit costs one test
of an attribute more, and a handler nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from opentelemetry import propagate, trace
from opentelemetry.context import Context

from headgate.domain.headers import TRACE_DISPATCHED, TRACE_LINK, TRACE_RELATION
from headgate.sdk.hooks import Middleware
from headgate.sdk.job import Job
from headgate.sdk.options import JobOptions, Prepared
from headgate.sdk.outcomes import Abandon, Cancelled, Nack, Snooze
from headgate.sdk.rpc import VERSION

R = TypeVar("R")
_SYSTEM: Final = "messaging.system"
_TOPIC: Final = "messaging.destination.name"


class Tracing:
    """Makes the spans of one client. Without a provider, that of the application (`trace.set_tracer_provider`)."""

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("headgate", VERSION, tracer_provider=provider)
        # A function at the top of a module: child processes find it by name. A bound method they cannot find.
        self.middleware: Middleware = traced if provider is None else self._traced

    # ------------------------------------------------------------------ submits

    @contextmanager
    def sending(self, topic: str, options: Prepared, *, many: bool = False) -> Iterator[Prepared]:
        """A `send` span; gives the options with its context among the headers."""
        attributes = {_SYSTEM: "headgate", _TOPIC: topic, "messaging.operation.type": "send"}
        kind = trace.SpanKind.PRODUCER
        with self._tracer.start_as_current_span(f"send {topic}", kind=kind, attributes=attributes):
            yield self.carrying(options, many=many)

    def carrying(self, options: Prepared, *, many: bool = False) -> Prepared:
        """The options with the current context among the headers; headers of the caller win."""
        context: dict[str, str] = {}
        propagate.inject(context)
        if not context:
            return options
        if many:
            context[TRACE_RELATION] = TRACE_LINK
        return options.over(JobOptions(headers={**context, **options.given.get("headers", {})}))

    async def submit(
        self,
        function: Callable[..., Coroutine[Any, Any, R]],
        connection: object,
        topic: str,
        payload: object,
        options: Prepared,
        *,
        returns: object,
        many: bool = False,
    ) -> R:
        """Submit within a `send` span."""
        with self.sending(topic, options, many=many) as carried:
            return await function(connection, topic, payload, carried, returns=returns)

    def submit_blocking(
        self,
        function: Callable[..., R],
        connection: object,
        topic: str,
        payload: object,
        options: Prepared,
        *,
        returns: object,
        many: bool = False,
    ) -> R:
        """As `submit`, blocking this thread."""
        with self.sending(topic, options, many=many) as carried:
            return function(connection, topic, payload, carried, returns=returns)

    # ------------------------------------------------------------------ handlers

    def _traced(self, job: Job) -> Iterator[None]:
        yield from _process(self._tracer, job)


def traced(job: Job) -> Iterator[None]:
    """A middleware: the spans of one attempt, by the provider of the application."""
    yield from _process(trace.get_tracer("headgate", VERSION), job)


def _process(tracer: trace.Tracer, job: Job) -> Iterator[None]:
    context, links = _origin(job)
    attributes: dict[str, str | int] = {
        _SYSTEM: "headgate",
        _TOPIC: job.topic,
        "messaging.message.id": str(job.id),
        "headgate.attempt": job.attempt,
        "headgate.max_attempts": job.max_attempts,
    }
    kind = trace.SpanKind.CONSUMER
    if job.headers.get(TRACE_RELATION) != TRACE_DISPATCHED:  # the server makes no spans, so that one is made here
        now = time.time_ns()
        # When a later attempt fell due is not known here.
        since = min(now, int(job.created_at.timestamp() * 1_000_000) * 1_000) if job.attempt == 1 else now
        dispatch = tracer.start_span(
            f"dispatch {job.topic}", context, kind=kind, attributes=attributes, links=links, start_time=since
        )
        dispatch.end(now)
        context = trace.set_span_in_context(dispatch, context)
    with tracer.start_as_current_span(
        f"process {job.topic}",
        context,
        kind=kind,
        attributes=attributes,
        links=links,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except (Nack, Snooze, Abandon, Cancelled, asyncio.CancelledError) as verdict:  # no error by itself
            span.set_attribute("headgate.outcome", type(verdict).__name__.lower())
            raise
        except Exception as error:
            span.record_exception(error)
            span.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
            raise


def _origin(job: Job) -> tuple[Context, list[trace.Link]]:
    """The context that a job continues, and the spans that it is linked to."""
    found = propagate.extract(job.headers, Context())
    if job.headers.get(TRACE_RELATION) != TRACE_LINK:
        return found, []
    origin = trace.get_current_span(found).get_span_context()
    return Context(), [trace.Link(origin)] if origin.is_valid else []
