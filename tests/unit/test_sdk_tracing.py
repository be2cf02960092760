"""Tracing in one process: what the headers carry, what a span says of an outcome, and that it is off by default."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headgate import Abandon, Fail, Headgate, InvalidInput, Job, Nack, Snooze
from headgate.domain.headers import TRACE_RELATION


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def hg(exporter: InMemorySpanExporter) -> Headgate:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app = Headgate("127.0.0.1:1")
    app.tracing(provider)
    return app


def nothing() -> None:
    pass


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


async def test_a_job_continues_the_trace_of_its_submit(hg: Headgate, exporter: InMemorySpanExporter) -> None:
    mail = hg.register("mail", nothing)
    with hg.testing() as box:
        await mail.submit()
        await box.drain()
    (sent,), (dispatched,), (processed,) = (named(exporter, f"{verb} mail") for verb in ("send", "dispatch", "process"))
    assert parent_of(sent) is None
    assert parent_of(dispatched) == id_of(sent)
    assert parent_of(processed) == id_of(dispatched)


async def test_a_later_attempt_does_not_wait_for_its_handler_since_the_submit(
    hg: Headgate, exporter: InMemorySpanExporter
) -> None:
    def handler(*, job: Job) -> None:
        if job.attempt == 1:
            raise Nack(0)

    mail = hg.register("mail", handler)
    with hg.testing() as box:
        await mail.submit()
        await box.drain()
    first, _ = named(exporter, "process mail")
    _, again = named(exporter, "dispatch mail")
    assert (again.start_time or 0) >= (first.end_time or 0) > 0


async def test_headers_of_the_caller_stay_and_win(hg: Headgate) -> None:
    seen: list[dict[str, str]] = []

    @hg.middleware
    def look(job):  # type: ignore[no-untyped-def]
        seen.append(dict(job.headers))
        yield

    mail = hg.register("mail", nothing)
    own = f"00-{'a' * 32}-{'b' * 16}-01"
    with hg.testing() as box:
        await mail.with_options(headers={"traceparent": own, "customer": "7"}).submit()
        await mail.submit_many([()])
        hg.sync.submit_many(mail, [()])
        await box.drain()
    assert seen[0] == {"traceparent": own, "customer": "7"}
    assert [one.keys() for one in seen[1:]] == [{"traceparent", TRACE_RELATION}] * 2


@pytest.mark.parametrize(
    ("raised", "status", "outcome"),
    [
        (ValueError("no"), "ERROR", None),
        (Fail("for good"), "ERROR", None),
        (Nack(0), "UNSET", "nack"),
        (Snooze(1), "UNSET", "snooze"),
        (Abandon(), "UNSET", "abandon"),
    ],
)
async def test_only_errors_are_errors(
    hg: Headgate, exporter: InMemorySpanExporter, raised: Exception, status: str, outcome: str | None
) -> None:
    attempts = 0

    def handler() -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise raised

    mail = hg.register("mail", handler)
    with hg.testing() as box:
        await mail.submit()
        await box.drain()
    first = named(exporter, "process mail")[0]
    assert first.status.status_code.name == status
    assert (first.attributes or {}).get("headgate.outcome") == outcome
    assert len(first.events) == (status == "ERROR")


async def test_it_is_switched_on_once(hg: Headgate) -> None:
    with pytest.raises(InvalidInput, match="is on already"):
        hg.tracing()


def test_without_it_nothing_of_opentelemetry_is_imported() -> None:
    code = (
        "import sys, headgate\n"
        "hg = headgate.Headgate('127.0.0.1:1')\n"
        "hg.register('a', print)\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
        "sys.modules['opentelemetry'] = None\n"
        "try:\n    hg.tracing()\n"
        "except headgate.InvalidInput as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (
        "tracing: needs OpenTelemetry, which is not installed; run: pip install 'headgate[tracing]'"
    )
