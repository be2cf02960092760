"""Probes of this instance. `live` and `ready` require no token and reveal nothing."""

from __future__ import annotations

from typing import Literal

from litestar import Response

from headgate.api.http.codec import Output, answers
from headgate.api.http.request import ApiRequest
from headgate.api.http.routing import get, open_get


class HealthState(Output, kw_only=True):
    """The answer to a probe."""

    status: Literal["ok", "not_ready"]


class DatabaseOut(Output, kw_only=True):
    """The settings of the database by which acknowledged jobs are kept or lost."""

    server_version: str
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    synchronous_commit_default: str
    synchronous_standby_names: str
    data_checksums: str
    in_recovery: bool
    read_only: bool
    max_connections: int
    problems: list[str]
    notes: list[str]


class HealthDetailsOut(Output, kw_only=True):
    """This instance and its database."""

    instance: str
    version: str
    ready: bool
    reason: str = ""
    durable: bool | None = None
    database: DatabaseOut | None = None
    database_error: str = ""


@open_get("/health/live", tags=["health"])
async def health_live(request: ApiRequest) -> HealthState:
    """Whether the process answers. Restart it if it does not."""
    del request
    return HealthState(status="ok")


@open_get("/health/ready", tags=["health"], statuses={503: "The instance is starting, stopping, or has no database."})
async def health_ready(request: ApiRequest) -> Response[HealthState]:
    """Whether the instance takes requests: its database answers and none of its services fails."""
    if request.cases.health.ready():
        return Response(HealthState(status="ok"))
    return Response(HealthState(status="not_ready"), status_code=503, headers={"retry-after": "1"})


@get("/health/details", uses="AdminService/Status", tags=["health"])
async def health_details(request: ApiRequest) -> HealthDetailsOut:
    """Readiness with its reason, and the durability settings of the database."""
    found = await request.cases.health.details(request.caller)
    database = found.database
    return answers.of(
        HealthDetailsOut,
        found,
        durable=None if database is None else not database.problems,
        database=None if database is None else answers.of(DatabaseOut, database),
    )
