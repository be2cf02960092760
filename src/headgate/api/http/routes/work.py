"""Workers that speak plain HTTP: claim jobs, keep their leases, report outcomes.

A claim gives each job with its epoch. Every later call names both: one for an earlier epoch changes nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Annotated, Final, Literal
from uuid import UUID

import msgspec
from litestar import Response
from litestar.params import JSONBody

from headgate.api.http.codec import Input, Output, content
from headgate.api.http.handover import HandoverResponse
from headgate.api.http.request import ApiRequest
from headgate.api.http.routes.job_logs import LogLinesIn, attempts_of
from headgate.api.http.routes.outcomes import TAG, Epoch
from headgate.api.http.routing import PathId, post
from headgate.dispatch.delivery import Delivery
from headgate.dispatch.ports import TopicFacts
from headgate.domain import limits
from headgate.domain.errors import LOCKED_OUTCOME, RowLocked, StaleLease
from headgate.domain.headers import deadline_us_of, made_by, of_caller
from headgate.domain.progress import progress_values

ANSWER_BYTES: Final = 4_000_000
"""Payloads in the answer of a claim; jobs that do not fit go back."""

WorkerName = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=limits.WORKER_ID_MAX_CHARS,
        description="Names the worker for people, and finds what it holds. Each process has its own.",
    ),
]
LeaseSeconds = Annotated[
    int,
    msgspec.Meta(
        ge=0,
        le=int(limits.LEASE_MAX.total_seconds()),
        description="0: that of the topic; without one, the default of the server.",
    ),
]


# ---------------------------------------------------------------------- claim


class ClaimIn(Input, kw_only=True):
    """What to claim."""

    worker_id: WorkerName
    topics: Annotated[list[str], msgspec.Meta(min_length=1, max_length=1_000)]
    count: Annotated[int, msgspec.Meta(ge=1, le=limits.CLAIM_MAX, description="Jobs, at most.")] = 1
    lease_seconds: LeaseSeconds = 0
    wait_seconds: Annotated[
        float,
        msgspec.Meta(
            ge=0, le=limits.CLAIM_WAIT_MAX_MS / 1000, description="How long to wait for the first job, if none is due."
        ),
    ] = 0.0


class ClaimedJob(Output, kw_only=True):
    """A job with its lease."""

    id: str
    epoch: int
    topic: str
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    payload_base64: Annotated[str, msgspec.Meta(description="If the payload is not JSON.")] = ""
    attempt: int
    max_attempts: int
    priority: int = 0
    created_us: int
    lease_until_us: int
    headers: dict[str, str] = {}
    schedule: Annotated[str, msgspec.Meta(description="The schedule that created the job, if any.")] = ""
    occurrence_us: int = 0
    deadline_us: Annotated[int, msgspec.Meta(description="The job must stop then; left out: never.")] = 0
    time_limit_ms: Annotated[int | None, msgspec.Meta(description="Of one attempt, by a rule of the topic.")] = None


class ClaimedJobs(Output, kw_only=True):
    """The jobs, highest rank first. None: the time is over, or the server is shutting down."""

    jobs: list[ClaimedJob]


@post("/v1/jobs/claim", uses="WorkerService/Claim", tags=TAG)
async def claim_jobs(request: ApiRequest, data: JSONBody[ClaimIn]) -> Response[ClaimedJobs]:
    """Claim jobs, and wait for some if none are due.

    Each job is leased to the worker: report its outcome, or extend the lease by a heartbeat, before `lease_until_us`.
    Jobs of an answer that does not reach the client return to their topic at no cost.
    """
    pulled = await request.while_connected(
        request.cases.work.claim(
            request.caller,
            data.worker_id,
            data.topics,
            count=data.count,
            lease_seconds=data.lease_seconds,
            wait_ms=round(1000 * data.wait_seconds),
            most_bytes=ANSWER_BYTES,
        )
    )
    try:
        facts = request.cases.topic_facts
        jobs = [job for delivery in pulled.deliveries for job in _claimed(delivery, facts)]
    except BaseException:
        pulled.give_back()
        raise
    return HandoverResponse(ClaimedJobs(jobs=jobs), pulled)


def _claimed(delivery: Delivery, facts: TopicFacts) -> list[ClaimedJob]:
    found: list[ClaimedJob] = []
    for index, job_id in enumerate(delivery.ids):
        text = delivery.headers[index]
        stored: dict[str, str] = json.loads(text) if text else {}
        headers = of_caller(stored)
        payload, payload_base64 = content(delivery.payloads[index], headers)
        schedule, occurrence_us = made_by(stored)
        found.append(
            ClaimedJob(
                id=str(job_id),
                epoch=delivery.epochs[index],
                topic=facts.topic_name(delivery.topic_nos[index]),
                payload=payload,
                payload_base64=payload_base64,
                attempt=delivery.attempts[index],
                max_attempts=delivery.max_attempts[index],
                priority=delivery.priorities[index],
                created_us=delivery.created_us[index],
                lease_until_us=delivery.lease_until_us,
                headers=headers,
                schedule=schedule,
                occurrence_us=occurrence_us,
                deadline_us=deadline_us_of(stored),
                time_limit_ms=facts.time_limit_ms(delivery.topic_nos[index]),
            )
        )
    return found


# ---------------------------------------------------------------------- heartbeats


class ProgressIn(Input, kw_only=True):
    """How far a job is, for people."""

    done: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    total: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    message: Annotated[str, msgspec.Meta(max_length=limits.REASON_MAX_CHARS)] = ""


class HeldIn(Input, kw_only=True):
    """A job that the worker holds."""

    id: UUID
    epoch: Epoch
    progress: ProgressIn | None = None
    logs: LogLinesIn = []


class HeartbeatIn(Input, kw_only=True):
    """A heartbeat for one job."""

    epoch: Epoch
    worker_id: str = ""
    lease_seconds: LeaseSeconds = 0
    progress: ProgressIn | None = None
    logs: LogLinesIn = []


class HeartbeatsIn(Input, kw_only=True):
    """A heartbeat for many jobs."""

    jobs: Annotated[list[HeldIn], msgspec.Meta(min_length=1, max_length=limits.HEARTBEAT_MAX_JOBS)]
    worker_id: str = ""
    lease_seconds: LeaseSeconds = 0


class Renewed(Output, kw_only=True):
    """What became of one lease."""

    id: str
    epoch: int
    code: Literal["renewed", "lost", "locked"]
    cancel: Annotated[bool, msgspec.Meta(description="Cancellation was requested: stop the job, then report.")] = False


class Heartbeats(Output, kw_only=True):
    """One entry for each job, in order."""

    jobs: list[Renewed]


@post("/v1/jobs/heartbeat", uses="WorkerService/Heartbeat", tags=TAG)
async def extend_leases(request: ApiRequest, data: JSONBody[HeartbeatsIn]) -> Heartbeats:
    """Extend leases from now, and report progress and log lines.

    `lost`: the lease is over, or the job does not exist: stop it, and report nothing. `locked`: neither; another
    transaction has locked the job, send the heartbeat again soon.
    """
    return Heartbeats(jobs=await _beat(request, data.worker_id, data.jobs, data.lease_seconds))


@post("/v1/jobs/{job_id:str}/heartbeat", uses="WorkerService/Heartbeat", tags=TAG)
async def extend_lease(request: ApiRequest, job_id: PathId, data: JSONBody[HeartbeatIn]) -> Renewed:
    """Extend the lease of one job from now, and report progress and log lines. 409 if the lease is lost."""
    held = HeldIn(id=job_id, epoch=data.epoch, progress=data.progress, logs=data.logs)
    (renewed,) = await _beat(request, data.worker_id, [held], data.lease_seconds)
    if renewed.code == "lost":  # or it never was: then this is 404
        found = await request.cases.jobs.get(request.caller, job_id)
        raise StaleLease(job_id, epoch=data.epoch, state=found.state.label)
    if renewed.code == "locked":
        raise RowLocked(LOCKED_OUTCOME)
    return renewed


async def _beat(request: ApiRequest, worker_id: str, jobs: Sequence[HeldIn], lease_seconds: int) -> list[Renewed]:
    answer = await request.cases.work.heartbeat(
        request.caller,
        worker_id,
        [job.id for job in jobs],
        [job.epoch for job in jobs],
        lease_seconds=lease_seconds,
        progress=[
            (job.id, job.epoch, progress_values(how.done, how.total, how.message, at_us=time.time_ns() // 1000))
            for job in jobs
            if (how := job.progress) is not None
        ],
        logs=list(attempts_of((job.id, job.epoch, job.logs) for job in jobs)),
    )
    lost, cancel, skipped = set(answer.lost), set(answer.cancel), set(answer.skipped)
    return [
        Renewed(
            id=str(job.id),
            epoch=job.epoch,
            code="lost" if pair in lost else "locked" if pair in skipped else "renewed",
            cancel=pair in cancel,
        )
        for job in jobs
        for pair in ((job.id, job.epoch),)
    ]
