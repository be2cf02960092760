"""Workers: the connection, the last sign of life and the last assignment of each; what it runs; lost workers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from litestar.params import FromPath, FromQuery

from headgate.control.admin import QUIET_DEFAULT
from headgate.domain.errors import NotFound
from headgate.domain.filters import quoted
from headgate.domain.workers import MORE_WORKERS, WorkerState, WorkerView, worker_state
from headgate.web.rendering import url
from headgate.web.request import Html, PageRequest
from headgate.web.routing import action, page

ROWS: Final = 500
"""Workers in the table; a search finds the others."""
SKEW_SHOWN: Final = timedelta(seconds=1)
"""A difference of the clocks below this is the network."""
KINDS: Final = {
    WorkerState.SILENT: "error",
    WorkerState.NOT_ASKING: "warn",
    WorkerState.STOPPING: "warn",
    WorkerState.QUIET: "warn",
    WorkerState.STANDBY: "",
    WorkerState.BUSY: "info",
    WorkerState.IDLE: "ok",
}
MEANINGS: Final = {
    WorkerState.SILENT: "The connection is open, but two heartbeats are missing",
    WorkerState.NOT_ASKING: "The connection is open, but it asks for no jobs and holds none",
    WorkerState.STOPPING: "An operator asked it to stop: it finishes what it runs, and ends",
    WorkerState.QUIET: "An operator stopped deliveries to it",
    WorkerState.STANDBY: "As many workers as permitted receive the jobs of its topics",
    WorkerState.BUSY: "It runs jobs",
    WorkerState.IDLE: "It waits for jobs",
}
REASONS: Final = {
    "connection_lost": "the connection was lost",
    "session_silent": "it was silent for longer than its lease",
    "session_overflow": "it did not read what it was sent",
    "lease_expired": "the leases of its jobs were not renewed",
    "unknown_jobs": "it reported jobs that it was not given",
    "token_revoked": "its token was revoked",
}


@page("/workers", uses="AdminService/ListWorkers")
async def list_workers(request: PageRequest, q: FromQuery[str] = "") -> Html:
    """All workers, connected and lost."""
    found = await request.cases.admin.workers(request.caller, running=True)
    shown = [one for one in found.workers if _matches(one, q.strip().lower())]
    return request.render(
        "workers/index.html",
        fragment="workers/_table.html",
        found=found,
        workers=shown[:ROWS],
        matching=len(shown),
        more_workers=MORE_WORKERS if found.more_workers else "",
        counts=_counts(found.workers),
        q=q,
        state_of=worker_state,
        kinds=KINDS,
        meanings=MEANINGS,
        reasons=REASONS,
        skew_shown=SKEW_SHOWN,
    )


@page("/workers/{worker:str}", uses="AdminService/ListWorkers")
async def show_worker(request: PageRequest, worker: FromPath[str]) -> Html:
    """One worker: all sessions of this name, and what they run."""
    found = await request.cases.admin.workers(request.caller, running=True)
    sessions = [one for one in found.workers if one.worker == worker]
    lost = [one for one in found.lost if one.worker == worker]
    if not sessions and not lost and not request.is_fragment:  # an open page says that it has stopped
        raise NotFound("worker", worker)
    return request.render(
        "workers/worker.html",
        fragment="workers/_worker.html",
        worker=worker,
        jobs_url=url("jobs", filter=f"worker:{quoted(worker)}"),
        sessions=sessions,
        lost=lost,
        state_of=worker_state,
        kinds=KINDS,
        meanings=MEANINGS,
        reasons=REASONS,
        skew_shown=SKEW_SHOWN,
    )


@action("/workers/{worker:str}/quiet", uses="AdminService/QuietWorker")
async def quiet_worker(request: PageRequest, worker: FromPath[str]) -> Html:
    """Stop deliveries to it."""
    form = request.fields
    span = form.duration("for", QUIET_DEFAULT)
    await request.cases.admin.quiet(request.caller, worker, reason=form.text("reason"), span=span)
    return request.done(f"{worker} gets no more jobs. It finishes what it holds.", changed="workers")


@action("/workers/{worker:str}/resume", uses="AdminService/ResumeWorker")
async def resume_worker(request: PageRequest, worker: FromPath[str]) -> Html:
    """Resume deliveries to it."""
    changed = await request.cases.admin.resume_worker(request.caller, worker, reason=request.fields.text("reason"))
    return request.done(f"{worker} gets jobs again." if changed else f"{worker} was not quiet.", changed="workers")


@action("/workers/{worker:str}/stop", uses="AdminService/StopWorker", confirm=True)
async def stop_worker(request: PageRequest, worker: FromPath[str]) -> Html:
    """Ask its processes to stop."""
    await request.cases.admin.stop_worker(request.caller, worker, reason=request.fields.text("reason"))
    return request.done(f"{worker} is asked to stop. It finishes what it runs.", changed="workers")


def _matches(worker: WorkerView, text: str) -> bool:
    return not text or text in worker.worker.lower() or any(text in topic.lower() for topic in worker.topics)


def _counts(workers: Sequence[WorkerView]) -> dict[WorkerState, int]:
    found = dict.fromkeys(WorkerState, 0)
    for one in workers:
        found[worker_state(one)] += 1
    return found
