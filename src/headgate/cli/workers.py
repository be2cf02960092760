"""`headgate workers …`: show connected workers and control which of them get jobs. (`headgate worker` runs one.)"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final

from cyclopts import App, Parameter

from headgate.cli import values
from headgate.cli.confirming import confirm
from headgate.cli.connection import with_client
from headgate.cli.lists import NameFilter, show_list
from headgate.cli.options import DEFAULT_SERVER, SHOWN, Limit, Output, Reason, Server, Shown, Yes
from headgate.cli.output import Columns, details, one_line, print_one, table, when
from headgate.domain.errors import NotFound
from headgate.domain.filters import Field
from headgate.domain.workers import MORE_WORKERS
from headgate.sdk import Headgate
from headgate.sdk.admin import LostWorker, RunningJob, WorkerInfo

workers = App(name="workers", help="Show connected workers, stop or resume dispatching to one of them, or stop one.")
WorkerName = Annotated[str, Parameter(help="Worker name.")]
WORKERS: Final[Columns[WorkerInfo]] = {
    "WORKER": lambda one: one.worker,
    "INSTANCE": lambda one: one.instance,
    "STATE": lambda one: one.state,
    "HOLDS": lambda one: one.holding,
    "CREDIT": lambda one: one.credit,
    "LAST JOB": lambda one: one.assigned_at,
    "TOPICS": lambda one: ", ".join(f"{topic} (stand-by)" if topic in one.standby else topic for topic in one.topics),
}
LOST: Final[Columns[LostWorker]] = {
    "WORKER": lambda one: one.worker,
    "INSTANCE": lambda one: one.instance,
    "LOST": lambda one: one.at,
    "REASON": lambda one: one.reason,
    "HELD": lambda one: one.holding,
}
RUNNING: Final[Columns[tuple[WorkerInfo, RunningJob]]] = {
    "WORKER": lambda one: one[0].worker,
    "JOB": lambda one: one[1].id,
    "TOPIC": lambda one: one[1].topic,
    "ATTEMPT": lambda one: one[1].attempt,
    "STARTED": lambda one: one[1].since,
}


@workers.command(name="list")
def list_command(
    *,
    filter: Annotated[  # noqa: A002 - the option's name
        str, Parameter(help="Only these workers: `worker:web-*`, or those of a topic: `topic:mail*`.")
    ] = "",
    limit: Limit = 1_000,
    shown: Shown = SHOWN,
) -> None:
    """List the workers connected to all servers, and the jobs that they run, longest running first."""
    chosen = NameFilter(filter, Field.WORKER, Field.TOPIC)
    matching, more_workers, more_running, lost = 0, False, False, list[LostWorker]()

    async def read(hg: Headgate) -> list[WorkerInfo]:
        nonlocal matching, more_workers, more_running
        found = await hg.admin.workers.list(running=True)
        more_workers, more_running, lost[:] = found.more_workers, found.more_running, found.lost
        listed = [one for one in found if chosen.matches({Field.WORKER: (one.worker,), Field.TOPIC: one.topics})]
        matching = len(listed)
        return listed[:limit]

    def notes(found: Sequence[WorkerInfo]) -> Iterator[str]:
        if matching > limit:
            yield f"{limit:,} of {matching:,} workers; --limit {matching} shows all"
        if more_workers:
            yield MORE_WORKERS
        if any(one.stop is not None for one in found):
            yield ""
        for one in found:
            if one.stop is not None:
                reason = f": {one_line(one.stop.reason)}" if one.stop.reason else ""
                yield f"{one.worker} was asked to stop by {one.stop.by} {when(one.stop.since)}{reason}"
        if lost:
            yield from ("", "lost in the last hour:", *table(lost, LOST))
        running = sorted(((worker, job) for worker in found for job in worker.running), key=lambda one: one[1].since)
        if running:
            yield from ("", *table(running, RUNNING))
        if running and more_running:
            yield f"more jobs run; these are the {len(running):,} that started first"

    show_list(shown, read, WORKERS, name=lambda one: one.worker, empty="no workers are connected", notes=notes)


@workers.command(name="get")
def get_command(worker: WorkerName, *, output: Output = "table", server: Server = DEFAULT_SERVER) -> None:
    """Show one worker: its connection, last heartbeat and last job, its topics, and the jobs that it runs."""
    found = with_client(server, lambda hg: hg.admin.workers.list(running=True))
    sessions = [one for one in found if one.worker == worker]
    if not sessions:
        raise NotFound("connected worker", worker)

    def lines() -> Iterator[str]:
        for one in sessions:
            yield from details(f"{one.worker}  {one.state}   on {one.instance}", _facts(one))
            if one.running:
                yield from ("", *table([(one, job) for job in one.running], RUNNING))

    print_one(sessions[0] if len(sessions) == 1 else sessions, output, lines, name=worker)


def _facts(one: WorkerInfo) -> Iterator[tuple[str, object]]:
    yield "program", one.client
    yield "stream", f"{'HTTP calls' if one.pull else 'open'} since {when(one.connected_at)}" if one.connected_at else ""
    # A server reports heartbeats of its workers to the others only when they are missing.
    yield "heartbeat", f"{when(one.seen_at)}{', silent' if one.silent else ''}" if one.seen_at else "on time"
    yield "last job", when(one.assigned_at) if one.assigned_at else "none yet"
    yield "holds", f"{one.holding:,} {'job' if one.holding == 1 else 'jobs'}, accepts {one.credit:,} more"
    yield "clock", f"{one.skew.total_seconds():+.1f} s from the database's" if one.skew is not None else ""
    yield "topics", WORKERS["TOPICS"](one)


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


@workers.command(name="stop")
def stop_command(
    worker: WorkerName,
    *,
    reason: Reason = "",
    yes: Yes = False,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Ask a connected worker to stop. It finishes the jobs it runs, returns the others, and its process ends.

    A process that connects later with the same name is not stopped.
    """
    if not yes:
        confirm(lambda: [f"{worker} finishes the jobs it runs, and its process ends."], output)
    asked = with_client(server, lambda hg: hg.admin.workers.stop(worker, reason=reason))
    sessions = f"{asked.sessions} session{'' if asked.sessions == 1 else 's'}"
    fields = {"worker": worker, "since": asked.since, "sessions": asked.sessions}
    print_one(fields, output, lambda: [f"{worker} is asked to stop ({sessions})"], name=worker)
