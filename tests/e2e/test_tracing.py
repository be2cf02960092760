"""Tracing across processes, by the program of its page: one trace from a submit to handlers, retries and batches."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.conftest import Serve, Spawn
from tests.support.howto import printed, program
from tests.support.server import clean_environ
from tests.support.waiting import until

PAGE = "tracing.md"


def spans(text: str) -> dict[str, list[dict[str, Any]]]:
    """The spans that a process printed, by name, in the order in which they began."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in re.findall(r"^span (\{.*)$", text, flags=re.MULTILINE):
        span = json.loads(line)
        found.setdefault(span["name"], []).append(span)
    for some in found.values():
        some.sort(key=lambda one: str(one["start_time"]))
    return found


def parent(span: dict[str, Any]) -> tuple[str, str]:
    return span["context"]["trace_id"], span["parent_id"]


def itself(span: dict[str, Any]) -> tuple[str, str]:
    return span["context"]["trace_id"], span["context"]["span_id"]


def test_the_page_on_tracing_runs_as_printed_and_a_trace_crosses_processes(
    serve: Serve, spawn: Spawn, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(program(PAGE))
    environ = {**clean_environ(), "HEADGATE_URL": serve().address, "PYTHONPATH": str(tmp_path)}
    worker = spawn("worker", sys.executable, "-m", "headgate.cli", "worker", "app:hg", environ=environ)
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("span ")]
    assert lines == printed(PAGE, "python app.py").splitlines()
    until(lambda: len(spans(worker.text()).get("process receipt", [])) == 3, "all receipts were processed")
    here, there = spans(done.stdout), spans(worker.text())

    (checkout,), (sent,), (many,) = here["checkout"], here["send charge"], here["send receipt"]
    assert parent(sent) == itself(checkout)
    assert sent["kind"] == "SpanKind.PRODUCER"
    # Both attempts are below the one submit, each by its own dispatch.
    dispatched, processed = there["dispatch charge"], there["process charge"]
    assert [parent(span) for span in dispatched] == [itself(sent)] * 2
    assert [parent(span) for span in processed] == [itself(span) for span in dispatched]
    assert [span["attributes"]["headgate.attempt"] for span in processed] == [1, 2]
    assert [span["status"]["status_code"] for span in processed] == ["ERROR", "UNSET"]
    assert dispatched[0]["start_time"] <= sent["end_time"]
    # What a handler submits continues its trace.
    (nested,) = there["send receipt"]
    assert parent(nested) == itself(processed[1])
    of_nested = [span for span in there["dispatch receipt"] if parent(span) == itself(nested)]
    assert len(of_nested) == 1
    # Jobs of one submit_many have traces of their own, linked to it.
    linked = [span for span in there["process receipt"] if span["links"]]
    assert len(linked) == 2
    traces = {span["context"]["trace_id"] for span in linked}
    assert len(traces) == 2
    assert sent["context"]["trace_id"] not in traces
    for span in linked:
        (link,) = span["links"]
        assert (link["context"]["trace_id"], link["context"]["span_id"]) == itself(many)
    assert worker.terminate() == 0
