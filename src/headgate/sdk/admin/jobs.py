"""`hg.admin.jobs`: the verbs on jobs by id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from headgate.domain.errors import HeadgateError, NotFound, Refused
from headgate.domain.ids import JobId, id_from_bytes, parse_job_id
from headgate.domain.job_logs import LINES_MAX
from headgate.domain.validation import check_integer, check_topic
from headgate.sdk.admin.encoding import utf8_text
from headgate.sdk.admin.history import JobEvent, job_event
from headgate.sdk.admin.job_logs import JobLogs, job_logs
from headgate.sdk.codec import encode
from headgate.sdk.connection import Connection
from headgate.sdk.options import PLAIN, PriorityTier, priority_of
from headgate.sdk.outcomes import Seconds, delay_in_ms
from headgate.sdk.records import state_word
from headgate.sdk.rpc import GET_JOB, Method
from headgate.wire import admin_pb2 as pb
from headgate.wire import jobs_pb2, producer_pb2

CANCEL: Final = Method("AdminService/CancelJobs", pb.CancelJobsRequest, pb.JobsResponse)
# Not repeatable: by then the job may have ended once more, and would run once too often.
REDRIVE: Final = Method("AdminService/RedriveJobs", pb.RedriveJobsRequest, pb.JobsResponse, repeatable=False)
DISCARD: Final = Method("AdminService/DiscardJobs", pb.DiscardJobsRequest, pb.JobsResponse)
REPRIORITISE: Final = Method("AdminService/ReprioritiseJobs", pb.ReprioritiseJobsRequest, pb.JobsResponse)
MOVE: Final = Method("AdminService/MoveJobs", pb.MoveJobsRequest, pb.JobsResponse)

Ids = UUID | str | Iterable[UUID | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """What a verb did to one job: `changed`, its `state` now, and else an error `code` with the reason in `message`."""

    id: JobId
    changed: bool
    state: str
    code: str = ""
    message: str = ""

    def raise_for_error(self) -> None:
        """Raise NotFound or Refused if nothing was done."""
        if error := self.error:
            raise error

    @property
    def error(self) -> HeadgateError | None:
        """Why nothing was done; None if it was, or was done before."""
        if not self.code:
            return None
        return NotFound("job", str(self.id)) if self.code == "not_found" else Refused(self.message)


class Jobs:
    """Verbs on jobs by id: one or up to 1,000 in a call, a `JobChange` for each in the same order.

    They never raise for a single job; see `JobChange.raise_for_error`.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def events(self, job_id: UUID | str, *, before: int = 0) -> list[JobEvent]:
        """What happened to a job, oldest first: who did what to it, when and why. Raises NotFound.

        At most the newest 1,000 events. `before=events[0].no` gives those before them; an empty list: there are none.
        """
        known = parse_job_id(job_id)
        number = check_integer(before, field="before", low=0, high=2**63 - 1)
        request = producer_pb2.GetJobRequest(id=known.bytes, with_events=True, events_before=number)
        found = await self._connection.call(GET_JOB, request, about=("job", str(known)))
        return [job_event(event, self._connection.encryption, known.bytes) for event in found.events]

    async def logs(
        self, job_id: UUID | str, *, attempt: int = 0, after: str = "", limit: int = LINES_MAX, newest: bool = False
    ) -> JobLogs:
        """What handlers logged while they ran a job, oldest line first; `attempt` 0: all attempts. Raises NotFound.

        `after=page.cursor` gives the lines beyond a page. With `newest` the newest lines are read instead of the oldest
        ones. At most 1,000 lines.
        """
        return await job_logs(self._connection, job_id, attempt=attempt, after=after, limit=limit, newest=newest)

    async def cancel(self, ids: Ids, *, reason: str = "") -> list[JobChange]:
        """End queued jobs at once; ask running ones to stop."""
        return changes_of(await self._connection.call(CANCEL, cancel_request(ids, reason)))

    async def redrive(
        self,
        ids: Ids,
        *,
        payload: object = None,
        delay: Seconds = 0,
        per_second: float = 0.0,
        reason: str = "",
    ) -> list[JobChange]:
        """Put finished jobs back on their topic with their attempts reset.

        `payload` is another body, for one job only: bytes as they are, all else as JSON. With `per_second` at most so
        many come back a second.
        """
        request = pb.RedriveJobsRequest(
            ids=_raw(ids), reason=utf8_text(reason, field="reason"), delay_ms=delay_in_ms(delay), per_second=per_second
        )
        if payload is not None:
            request.payload = payload if isinstance(payload, bytes) else encode(payload, path="payload")
            if self._connection.encryption is not None and len(request.ids) == 1:
                (request.payload,) = self._connection.encryption.seal_payloads([request.payload], request.ids, PLAIN)
        return changes_of(await self._connection.call(REDRIVE, request))

    async def discard(self, ids: Ids, *, reason: str = "") -> list[JobChange]:
        """Remove dead and cancelled jobs for good; their history stays."""
        request = pb.DiscardJobsRequest(ids=_raw(ids), reason=utf8_text(reason, field="reason"))
        return changes_of(await self._connection.call(DISCARD, request))

    async def reprioritise(self, ids: Ids, priority: int | PriorityTier, *, reason: str = "") -> list[JobChange]:
        """Give queued jobs another priority (a number or a tier), from the next claim on; their age stays."""
        request = pb.ReprioritiseJobsRequest(
            ids=_raw(ids), reason=utf8_text(reason, field="reason"), priority=priority_of(priority)
        )
        return changes_of(await self._connection.call(REPRIORITISE, request))

    async def move(self, ids: Ids, topic: str, *, reason: str = "") -> list[JobChange]:
        """Put queued jobs on another topic, which is made if there is none; priority and age stay."""
        request = pb.MoveJobsRequest(ids=_raw(ids), reason=utf8_text(reason, field="reason"), topic=check_topic(topic))
        return changes_of(await self._connection.call(MOVE, request))


def _raw(ids: Ids) -> list[bytes]:
    many: Sequence[UUID | str] = [ids] if isinstance(ids, UUID | str) else list(ids)
    return [parse_job_id(one).bytes for one in many]


def cancel_request(ids: Ids, reason: str) -> pb.CancelJobsRequest:
    """To cancel these."""
    return pb.CancelJobsRequest(ids=_raw(ids), reason=utf8_text(reason, field="reason"))


def changes_of(answer: pb.JobsResponse) -> list[JobChange]:
    """Read the results off the wire."""
    return [
        JobChange(
            id=id_from_bytes(one.id),
            changed=one.changed,
            state="" if one.state == jobs_pb2.STATE_UNSPECIFIED else state_word(one.state),
            code=one.error.code,
            message=one.error.message,
        )
        for one in answer.results
    ]
