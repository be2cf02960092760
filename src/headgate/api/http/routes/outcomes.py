"""Outcomes over plain HTTP: what became of jobs that a worker has claimed.

Every outcome names the job and the epoch of its claim. One of an earlier epoch changes nothing: it is stale.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from litestar.params import JSONBody

from headgate.api.http.codec import (
    Input,
    Microseconds,
    Milliseconds,
    Output,
    RawJson,
    StateName,
    at_us,
    label,
    payload_bytes,
)
from headgate.api.http.problems import ItemError, item_error
from headgate.api.http.request import ApiRequest
from headgate.api.http.routing import PathId, post
from headgate.dispatch.delivery import Answer
from headgate.domain import limits
from headgate.domain.errors import LOCKED_OUTCOME, HeadgateError, InvalidInput, NotFound, RowLocked, StaleLease
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Outcome, Snooze
from headgate.domain.states import Receipt, State

TAG = ["work"]
ReceiptName = Literal["applied", "duplicate", "stale", "unknown", "locked", "invalid"]
Epoch = Annotated[
    int, msgspec.Meta(ge=0, le=limits.EPOCH_MAX, description="Of the claim: an outcome of another one is stale.")
]
WorkerHint = Annotated[str, msgspec.Meta(description="Of the claim: its outcomes are written faster.")]


class CompletedIn(Input, kw_only=True):
    """The work is done."""

    result: Annotated[RawJson, msgspec.Meta(description="Any JSON value.")] = msgspec.UNSET
    result_base64: Annotated[str | None, msgspec.Meta(description="Other bytes, in place of `result`.")] = None

    def outcome(self) -> Outcome:
        """As the rules take it; raises InvalidInput."""
        return Completed(result=payload_bytes(self.result, self.result_base64, field="result"))


class FailedIn(Input, kw_only=True):
    """The attempt failed: the job is retried by its policy, or dead at once if `permanent`."""

    message: Annotated[str, msgspec.Meta(min_length=1)]
    type: str = "Error"
    traceback: str = ""
    permanent: bool = False

    def outcome(self) -> Outcome:
        """As the rules take it."""
        error = ErrorInfo(type=self.type, message=self.message, traceback=self.traceback)
        return Failed(error=error, permanent=self.permanent)


class NackIn(Input, kw_only=True):
    """Not now: the job runs again after `delay_ms`, at the cost of the attempt."""

    delay_ms: Milliseconds = 0
    reason: Annotated[str, msgspec.Meta(max_length=limits.REASON_MAX_CHARS)] = ""

    def outcome(self) -> Outcome:
        """As the rules take it."""
        return Nack(delay=timedelta(milliseconds=self.delay_ms), reason=self.reason)


class SnoozeIn(Input, kw_only=True):
    """Run again after `delay_ms`; costs no attempt."""

    delay_ms: Milliseconds

    def outcome(self) -> Outcome:
        """As the rules take it."""
        return Snooze(delay=timedelta(milliseconds=self.delay_ms))


class AbandonIn(Input, kw_only=True):
    """Give the job back untouched; costs no attempt."""

    def outcome(self) -> Outcome:
        """As the rules take it."""
        return Abandon()


class CompleteJob(CompletedIn, kw_only=True):
    """The outcome of one job: it is done."""

    epoch: Epoch
    worker_id: WorkerHint = ""


class FailJob(FailedIn, kw_only=True):
    """The outcome of one job: it failed."""

    epoch: Epoch
    worker_id: WorkerHint = ""


class NackJob(NackIn, kw_only=True):
    """The outcome of one job: not now."""

    epoch: Epoch
    worker_id: WorkerHint = ""


class SnoozeJob(SnoozeIn, kw_only=True):
    """The outcome of one job: later."""

    epoch: Epoch
    worker_id: WorkerHint = ""


class AbandonJob(AbandonIn, kw_only=True):
    """The outcome of one job: given back."""

    epoch: Epoch
    worker_id: WorkerHint = ""


class OutcomeIn(Input, kw_only=True):
    """The outcome of one job: exactly one of the five."""

    id: UUID
    epoch: Epoch
    completed: CompletedIn | None = None
    failed: FailedIn | None = None
    nack: NackIn | None = None
    snooze: SnoozeIn | None = None
    abandon: AbandonIn | None = None

    def outcome(self, index: int) -> Outcome:
        """As the rules take it; raises InvalidInput."""
        given = [one for one in (self.completed, self.failed, self.nack, self.snooze, self.abandon) if one is not None]
        if len(given) != 1:
            raise InvalidInput(
                f"outcomes[{index}]",
                f"has {len(given)} outcomes",
                hint="give completed, failed, nack, snooze or abandon",
            )
        return given[0].outcome()


class OutcomesIn(Input, kw_only=True):
    """Outcomes of many jobs."""

    outcomes: Annotated[list[OutcomeIn], msgspec.Meta(min_length=1, max_length=limits.SETTLE_FLUSH_MAX_ROWS)]
    worker_id: WorkerHint = ""


class OutcomeReceipt(Output, kw_only=True):
    """What became of one outcome."""

    id: str
    epoch: int
    code: Annotated[
        ReceiptName,
        msgspec.Meta(
            description="applied: written. duplicate: written before. stale: the lease is lost, or another outcome "
            "came first; nothing was changed. unknown: no such job. locked: not written yet, send it again. invalid: "
            "see error."
        ),
    ]
    state: Annotated[StateName | Literal[""], msgspec.Meta(description="Of the job, when known.")] = ""
    run_at_us: Annotated[Microseconds, msgspec.Meta(description="When it runs again, if it does.")] = 0
    error: ItemError | None = None


class OutcomeReceipts(Output, kw_only=True):
    """One receipt for each outcome, in order."""

    receipts: list[OutcomeReceipt]


@post("/v1/jobs/outcomes", uses="WorkerService/ReportOutcome", tags=TAG)
async def report_outcomes(request: ApiRequest, data: JSONBody[OutcomesIn]) -> OutcomeReceipts:
    """Report outcomes of many jobs.

    One receipt for each, in order, after the commit. One that is refused does not affect the others.
    """
    good: dict[int, tuple[UUID, int, Outcome]] = {}
    bad: dict[int, HeadgateError] = {}
    for index, one in enumerate(data.outcomes):
        try:
            good[index] = (one.id, one.epoch, one.outcome(index))
        except HeadgateError as error:
            bad[index] = error.with_traceback(None)
    answers = await _reported(request, data.worker_id, good)
    return OutcomeReceipts(
        receipts=[
            _receipt(one.id, one.epoch, bad.get(index) or answers.get(index)) for index, one in enumerate(data.outcomes)
        ]
    )


@post("/v1/jobs/{job_id:str}/complete", uses="WorkerService/ReportOutcome", tags=TAG)
async def complete_job(request: ApiRequest, job_id: PathId, data: JSONBody[CompleteJob]) -> OutcomeReceipt:
    """Report that a job is done, with its result. 409 if the lease is lost."""
    return await _one(request, job_id, data)


@post("/v1/jobs/{job_id:str}/fail", uses="WorkerService/ReportOutcome", tags=TAG)
async def fail_job(request: ApiRequest, job_id: PathId, data: JSONBody[FailJob]) -> OutcomeReceipt:
    """Report that an attempt failed. 409 if the lease is lost."""
    return await _one(request, job_id, data)


@post("/v1/jobs/{job_id:str}/nack", uses="WorkerService/ReportOutcome", tags=TAG)
async def nack_job(request: ApiRequest, job_id: PathId, data: JSONBody[NackJob]) -> OutcomeReceipt:
    """Refuse a job for now; costs the attempt. 409 if the lease is lost."""
    return await _one(request, job_id, data)


@post("/v1/jobs/{job_id:str}/snooze", uses="WorkerService/ReportOutcome", tags=TAG)
async def snooze_job(request: ApiRequest, job_id: PathId, data: JSONBody[SnoozeJob]) -> OutcomeReceipt:
    """Run a job again later; costs no attempt. 409 if the lease is lost."""
    return await _one(request, job_id, data)


@post("/v1/jobs/{job_id:str}/abandon", uses="WorkerService/ReportOutcome", tags=TAG)
async def abandon_job(request: ApiRequest, job_id: PathId, data: JSONBody[AbandonJob]) -> OutcomeReceipt:
    """Give a job back untouched; costs no attempt. 409 if the lease is lost."""
    return await _one(request, job_id, data)


async def _one(
    request: ApiRequest, job_id: UUID, data: CompleteJob | FailJob | NackJob | SnoozeJob | AbandonJob
) -> OutcomeReceipt:
    answers = await _reported(request, data.worker_id, {0: (job_id, data.epoch, data.outcome())})
    answer = answers.get(0)
    if isinstance(answer, HeadgateError):
        raise answer
    if answer is not None and answer.receipt is Receipt.UNKNOWN:
        raise NotFound("job", str(job_id))
    if answer is not None and answer.receipt is Receipt.STALE:
        raise StaleLease(job_id, epoch=data.epoch, state="" if answer.state is None else answer.state.label)
    if answer is not None and answer.receipt is Receipt.LOCKED:
        raise RowLocked(LOCKED_OUTCOME)
    return _receipt(job_id, data.epoch, answer)


async def _reported(
    request: ApiRequest, worker_id: str, outcomes: Mapping[int, tuple[UUID, int, Outcome]]
) -> dict[int, Answer]:
    answers = await request.cases.work.report(request.caller, worker_id, list(outcomes.values()), size=request.size)
    return {index: answers[row] for row, index in enumerate(outcomes) if row in answers}


def _receipt(job_id: UUID, epoch: int, answer: Answer | None) -> OutcomeReceipt:
    if answer is None:
        return OutcomeReceipt(id=str(job_id), epoch=epoch, code="applied", state=label(State.COMPLETED))
    if isinstance(answer, HeadgateError):
        return OutcomeReceipt(id=str(job_id), epoch=epoch, code="invalid", error=item_error(answer))
    return OutcomeReceipt(
        id=str(job_id),
        epoch=epoch,
        code=answer.receipt.label,  # type: ignore[arg-type]  # one of ReceiptName
        state=label(answer.state),
        run_at_us=at_us(answer.run_at),
    )
