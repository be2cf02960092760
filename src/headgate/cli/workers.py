"""`headgate workers …`: show connected workers and control which of them get jobs. (`headgate worker` runs one.)"""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from headgate.cli import values
from headgate.cli.connection import with_client
from headgate.cli.options import Output, Reason, Url
from headgate.cli.output import as_json, print_lines, table, utc

workers = App(name="workers", help="Show connected workers, and stop or resume dispatching to one of them.")
WorkerName = Annotated[str, Parameter(help="Worker name.")]


@workers.command(name="list")
def list_command(*, output: Output = "text", url: Url = "") -> None:
    """List the workers connected to all servers."""
    found = with_client(url, lambda hg: hg.admin.workers.list())
    if output == "json":
        print_lines(map(as_json, found))
        return
    head = ("WORKER", "INSTANCE", "HOLDS", "CREDIT", "QUIET", "TOPICS")
    rows = [
        (one.worker, one.instance, one.holding, one.credit, "quiet" if one.quiet else "-", ", ".join(one.topics))
        for one in found
    ]
    print_lines(table(head, rows, right=(2, 3)))


@workers.command(name="quiet")
def quiet_command(
    worker: WorkerName,
    *,
    duration: Annotated[str, Parameter(help="How long: 10m, 1h, 2d.")] = "1h",
    reason: Reason = "",
    url: Url = "",
) -> None:
    """Dispatch no more jobs to a worker, on every server. It finishes the jobs it holds."""
    span = values.duration(duration, field="--duration")
    until = with_client(url, lambda hg: hg.admin.workers.quiet(worker, reason=reason, duration=span))
    print(f"{worker} gets no jobs until {utc(until)}")


@workers.command(name="resume")
def resume_command(worker: WorkerName, *, reason: Reason = "", url: Url = "") -> None:
    """Resume dispatching jobs to a quiet worker."""
    changed = with_client(url, lambda hg: hg.admin.workers.resume(worker, reason=reason))
    print(f"{worker} gets jobs again" if changed else f"{worker} was not quiet")
