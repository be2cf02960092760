"""Spans of a server: one trace from the submit over the dispatch to the handler, also for retries; off by default."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from headgate import Headgate, Job, RetryPolicy
from headgate.domain.errors import InvalidSetting
from headgate.domain.headers import TRACE_LINK, TRACE_RELATION
from headgate.ops.tracing import provider_of_environment
from headgate.sdk.job import this_job
from headgate.server import Server, ServerOptions
from headgate.store.connect import Connection
from tests.support.dispatch_waits import soon

DELAY = timedelta(milliseconds=300)


class Spans:
    """A provider, and what it has exported."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        found = [span for span in self.exporter.get_finished_spans() if span.name == name]
        return sorted(found, key=lambda span: span.start_time or 0)


@asynccontextmanager
async def serving(database: str, spans: Spans | None) -> AsyncIterator[Server]:
    options = ServerOptions(database_url=database, port=0, dev=True, unsafe=True, grace=timedelta(0), name="one")
    server = Server(options, tracer_provider=None if spans is None else spans.provider)
    await server.start()
    running = asyncio.create_task(server.run(stop := asyncio.Event()))
    try:
        yield server
    finally:
        stop.set()
        await running
        await server.stop()


@asynccontextmanager
async def working(server: Server, spans: Spans) -> AsyncIterator[Headgate]:
    """A client and a worker with spans of their own, of a topic whose first attempt fails."""
    async with Headgate(f"127.0.0.1:{server.port}") as hg:
        hg.tracing(spans.provider)

        @hg.job("charge", max_attempts=2, retry=RetryPolicy.fixed(DELAY))
        async def charge(fails: bool, *, job: Job = this_job) -> int:
            if fails and job.attempt == 1:
                raise TimeoutError("the bank did not answer")
            return job.attempt

        task = asyncio.create_task(hg.work())
        try:
            yield hg
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def parent(span: ReadableSpan) -> tuple[int, int]:
    assert span.parent is not None
    return span.parent.trace_id, span.parent.span_id


def itself(span: ReadableSpan) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


async def test_a_trace_goes_from_the_submit_over_the_server_to_the_handler(database: str) -> None:
    ours, theirs = Spans(), Spans()
    async with serving(database, theirs) as server, working(server, ours) as hg:
        handle = await hg.submit("charge", {"fails": True})
        assert await handle.result(30) == 2
        await soon(lambda: len(ours.named("process charge")) == 2, "both attempts are traced")
    (sent,), processed, dispatched = (
        ours.named("send charge"),
        ours.named("process charge"),
        theirs.named("dispatch charge"),
    )
    assert ours.named("dispatch charge") == [], "the server has made it"
    assert [parent(span) for span in dispatched] == [itself(sent)] * 2
    assert [parent(span) for span in processed] == [itself(span) for span in dispatched]
    known = dispatched[1].attributes or {}
    assert (known["headgate.attempt"], known["headgate.instance"]) == (2, "one")
    assert known["messaging.message.id"] == str(handle.id)
    assert processed[1].start_time is not None
    assert (dispatched[1].start_time or 0) > (processed[0].end_time or 0) + 0.5 * DELAY / timedelta(
        microseconds=1
    ) * 1000


async def test_jobs_of_one_submit_have_traces_of_their_own_with_a_link(database: str) -> None:
    ours, theirs = Spans(), Spans()
    async with serving(database, theirs) as server, working(server, ours) as hg:
        for handle in await hg.submit_many("charge", [{"fails": False}] * 2):
            await handle.result(30)
        await soon(lambda: len(ours.named("process charge")) == 2, "both are traced")
    (sent,) = ours.named("send charge")
    dispatched = theirs.named("dispatch charge")
    assert len({span.context.trace_id for span in (sent, *dispatched)}) == 3
    for span in dispatched:
        assert span.parent is None
        assert [link.context.span_id for link in span.links] == [sent.context.span_id]
    assert {parent(span) for span in ours.named("process charge")} == {itself(span) for span in dispatched}


@pytest.mark.parametrize("sampled", [True, False])
async def test_without_tracing_or_without_a_sampled_submit_the_server_makes_no_span(
    database: str, *, sampled: bool
) -> None:
    """And the worker has the context of the submit."""
    ours, theirs = Spans(ALWAYS_ON if sampled else ALWAYS_OFF), Spans()
    async with serving(database, None if sampled else theirs) as server, working(server, ours) as hg:
        assert (server.tracer is None) == sampled
        assert await (await hg.submit("charge", {"fails": False})).result(30) == 1
        if sampled:
            await soon(lambda: ours.named("process charge"), "the handler is traced")
            assert [parent(one) for one in ours.named("dispatch charge")] == [itself(*ours.named("send charge"))]
    assert theirs.exporter.get_finished_spans() == ()


def test_the_exporter_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    provider = provider_of_environment(instance="one", version="1.2")
    assert provider.resource.attributes["service.name"] == "headgate"
    assert provider.resource.attributes["service.instance.id"] == "one"
    provider.shutdown()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "nowhere")
    with pytest.raises(InvalidSetting, match=r'no exporter "nowhere" is installed.*pip install'):
        provider_of_environment(instance="one", version="1.2")


async def test_jobs_that_are_submitted_together_in_a_transaction_are_linked_to_one_span(
    database: str, db: Connection
) -> None:
    spans = Spans()
    hg = Headgate("127.0.0.1:1", tenant="acme")
    hg.tracing(spans.provider)

    @hg.job("mail")
    def mail(to: str) -> None:
        del to

    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction():
            one = await mail.submit_in(connection, "ana")
            many = await mail.submit_many_in(connection, [("bo",), ("cy",)])
    finally:
        await connection.close()
    found = {row["id"]: json.loads(row["headers"]) for row in await db.fetch("SELECT id, headers FROM headgate.jobs")}
    assert found[one.id].keys() == {"traceparent"}
    assert [found[job.id].get(TRACE_RELATION) for job in many] == [TRACE_LINK] * 2
    assert len({found[job.id]["traceparent"] for job in many}) == 1
    assert len(spans.named("send mail")) == 2
