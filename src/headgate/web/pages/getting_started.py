"""The page for an empty installation: a worker and a job to copy, and a sign as soon as they have arrived."""

from __future__ import annotations

from typing import Final

from headgate.domain.states import State
from headgate.web.request import Html, PageRequest
from headgate.web.routing import page

WORKER: Final = """from headgate import Headgate

hg = Headgate()


@hg.job("greet")
def greet(name: str) -> str:
    return f"Hello, {name}!"
"""


@page("/getting-started", uses="AdminService/Status")
async def getting_started(request: PageRequest) -> Html:
    """The steps, and which of them are done."""
    status = await request.cases.admin.status(request.caller)
    workers = sum(one.workers for one in status.instances)
    jobs = sum(sum(one.counts.values()) for one in status.topics)
    completed = sum(one.counts.get(State.COMPLETED, 0) for one in status.topics)
    return request.render(
        "start/index.html",
        fragment="start/_steps.html",
        worker_code=WORKER.strip(),
        workers=workers,
        jobs=jobs,
        completed=completed,
    )
