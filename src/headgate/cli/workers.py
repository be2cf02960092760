"""`headgate workers …`: show connected workers and control which of them get jobs. (`headgate worker` runs one.)"""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter

from headgate.cli import values
from headgate.cli.connection import with_client
from headgate.cli.options import DEFAULT_SERVER, Output, Reason, Server
from headgate.cli.output import Columns, print_list, print_one, table, when
from headgate.sdk.admin import RunningJob, WorkerInfo

workers = App(name="workers", help="Show connected workers, and stop or resume dispatching to one of them.")
WorkerName = Annotated[str, Parameter(help="Worker name.")]
WORKERS: Final[Columns[WorkerInfo]] = {
    "WORKER": lambda one: one.worker,
    "INSTANCE": lambda one: one.instance,
    "STATE": lambda one: "quiet" if one.quiet else "active",
    "HOLDS": lambda one: one.holding,
    "CREDIT": lambda one: one.credit,
    "TOPICS": lambda one: ", ".join(one.topics),
}
RUNNING: Final[Columns[tuple[WorkerInfo, RunningJob]]] = {
    "WORKER": lambda one: one[0].worker,
    "JOB": lambda one: one[1].id,
    "TOPIC": lambda one: one[1].topic,
    "ATTEMPT": lambda one: one[1].attempt,
    "STARTED": lambda one: one[1].since,
}


@workers.command(name="list")
def list_command(*, output: Output = "table", server: Server = DEFAULT_SERVER) -> None:
    """List the workers connected to all servers, and the jobs that they run, longest running first."""
    found = with_client(server, lambda hg: hg.admin.workers.list(running=True))
    print_list(found, output, WORKERS, name=lambda one: one.worker, empty="no workers are connected")
    running = [(worker, job) for worker in found for job in worker.running]
    if running and output == "table":
        running.sort(key=lambda one: one[1].since)
        print("", *table(running, RUNNING), sep="\n")


@workers.command(name="quiet")
def quiet_command(
    worker: WorkerName,
    *,
    duration: Annotated[str, Parameter(help="How long: 10m, 1h, 2d.")] = "1h",
    reason: Reason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Dispatch no more jobs to a worker, on every server. It finishes the jobs it holds."""
    span = values.duration(duration, field="--duration")
    until = with_client(server, lambda hg: hg.admin.workers.quiet(worker, reason=reason, duration=span))
    fields = {"worker": worker, "quiet": True, "until": until}
    print_one(fields, output, lambda: [f"{worker} gets no jobs until {when(until)}"], name=worker)


@workers.command(name="resume")
def resume_command(
    worker: WorkerName, *, reason: Reason = "", output: Output = "table", server: Server = DEFAULT_SERVER
) -> None:
    """Resume dispatching jobs to a quiet worker."""
    changed = with_client(server, lambda hg: hg.admin.workers.resume(worker, reason=reason))
    text = f"{worker} gets jobs again" if changed else f"{worker} was not quiet"
    print_one({"worker": worker, "quiet": False, "changed": changed}, output, lambda: [text], name=worker)
