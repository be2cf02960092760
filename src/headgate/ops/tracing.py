"""OpenTelemetry spans of a server: `dispatch TOPIC`, from the due time of a job until it is handed to a worker.

Off unless `--tracing` is set; then only jobs whose headers have a sampled context cost something. The span continues
the context of the submit, and the worker continues that of the span: its headers go out with the new context, and
`headgate-trace: dispatched`. What is stored stays as it is, so a retry is another `dispatch` below the same submit.

Exporter, endpoint, sampler and resource are those of the variables of OpenTelemetry (`OTEL_…`). Only this module of the
server imports OpenTelemetry.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context

from headgate.domain.dispatching import Claimed
from headgate.domain.errors import InvalidSetting
from headgate.domain.headers import TRACE_DISPATCHED, TRACE_LINK, TRACE_RELATION
from headgate.domain.timestamps import unix_us

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

EXPORTER_VARIABLE: Final = "OTEL_TRACES_EXPORTER"
_EXPORTERS: Final = "opentelemetry_traces_exporter"
_OTLP: Final = ("otlp", "otlp_proto_http", "otlp_proto_grpc")
_INSTALL: Final = "run: pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"


class DispatchTracer:
    """Makes the spans of one instance."""

    def __init__(
        self, provider: trace.TracerProvider, *, topic_name: Callable[[int], str], instance: str, version: str
    ) -> None:
        self._tracer = trace.get_tracer("headgate", version, tracer_provider=provider)
        self._provider, self._topic_name, self._instance = provider, topic_name, instance
        self._marks = tuple(f'"{name}"' for name in propagate.get_global_textmap().fields)

    def claimed(self, got: Claimed, created_us: Sequence[int]) -> None:
        """Make the spans of claimed jobs, and put their contexts among the headers that go out."""
        now = time.time_ns()
        headers = list(got.headers)
        for index, text in enumerate(headers):
            if text is not None and any(mark in text for mark in self._marks):
                run_at = got.run_ats[index]
                due_us = created_us[index] if run_at is None else unix_us(run_at)
                headers[index] = self._dispatched(got, index, json.loads(text), start=min(now, due_us * 1000), now=now)
        got.headers = tuple(headers)

    def close(self) -> None:
        """Send what was not sent yet. Blocks for some seconds at most, if the exporter is away."""
        flush: Callable[[int], bool] | None = getattr(self._provider, "force_flush", None)
        if flush is not None:
            flush(3_000)

    def _dispatched(self, got: Claimed, index: int, headers: dict[str, str], *, start: int, now: int) -> str:
        context = propagate.extract(headers, Context())
        origin = trace.get_current_span(context).get_span_context()
        links: list[trace.Link] = []
        if headers.get(TRACE_RELATION) == TRACE_LINK:
            links, context = [trace.Link(origin)], Context()
        topic = self._topic_name(got.topic_nos[index])
        if origin.is_valid and origin.trace_flags.sampled:
            span = self._tracer.start_span(
                f"dispatch {topic}",
                context,
                kind=trace.SpanKind.CONSUMER,
                links=links,
                start_time=start,
                attributes={
                    "messaging.system": "headgate",
                    "messaging.destination.name": topic,
                    "messaging.message.id": str(got.ids[index]),
                    "headgate.attempt": got.attempts[index],
                    "headgate.max_attempts": got.max_attempts[index],
                    "headgate.instance": self._instance,
                },
            )
            if span.is_recording():
                propagate.inject(headers, trace.set_span_in_context(span, context))
                headers[TRACE_RELATION] = TRACE_DISPATCHED
            span.end(now)
        return json.dumps(headers)


def provider_of_environment(*, instance: str, version: str) -> TracerProvider:
    """The provider of the process if there is one (opentelemetry-instrument), else one by the variables OTEL_….

    Raises InvalidSetting.
    """
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError:
        raise InvalidSetting("--tracing", "needs the SDK of OpenTelemetry", hint=_INSTALL) from None
    current = trace.get_tracer_provider()
    if isinstance(current, TracerProvider):
        return current
    name = os.environ.get(EXPORTER_VARIABLE) or "otlp"
    found = [
        one for known in (_OTLP if name == "otlp" else (name,)) for one in entry_points(group=_EXPORTERS, name=known)
    ]
    if not found:
        raise InvalidSetting("--tracing", f'no exporter "{name}" is installed ({EXPORTER_VARIABLE})', hint=_INSTALL)
    known = {"service.version": version, "service.instance.id": instance}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        known["service.name"] = "headgate"
    made = TracerProvider(resource=Resource.create(known))
    made.add_span_processor(BatchSpanProcessor(found[0].load()()))
    return made
