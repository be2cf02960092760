"""Durable operations: one verb over everything a filter matches, carried out by the servers in bounded chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypedDict, Unpack
from uuid import UUID

from headgate.domain.bulk import Verb
from headgate.domain.errors import InvalidInput
from headgate.domain.filter_parser import parse
from headgate.domain.ids import parse_job_id
from headgate.domain.validation import check_integer, check_page_size, shown
from headgate.sdk.admin.encoding import utf8_text
from headgate.sdk.admin.listing import by_state
from headgate.sdk.connection import Connection
from headgate.sdk.handles import JobInfo, job_info
from headgate.sdk.ids import new_id_maker
from headgate.sdk.options import PriorityTier, priority_of
from headgate.sdk.outcomes import Seconds, delay_in_ms
from headgate.sdk.records import record
from headgate.sdk.rpc import Method
from headgate.wire import bulk_pb2 as pb

PREVIEW: Final = Method("BulkService/PreviewBulk", pb.BulkPlan, pb.BulkPreview)
# Repeatable: the id makes the same start the same operation.
START: Final = Method("BulkService/StartBulk", pb.StartBulkRequest, pb.BulkOperation)
GET: Final = Method("BulkService/GetBulk", pb.GetBulkRequest, pb.BulkOperation)
LIST: Final = Method("BulkService/ListBulk", pb.ListBulkRequest, pb.ListBulkResponse)
CANCEL: Final = Method("BulkService/CancelBulk", pb.CancelBulkRequest, pb.BulkOperation)
VERBS: Final = tuple(verb.label for verb in Verb)
GIVE_UP_SECONDS: Final = 60.0


class PlanOptions(TypedDict, total=False):
    """What a verb may need to know."""

    reason: str
    priority: int | PriorityTier
    topic: str
    delay: Seconds
    per_second: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOperation:
    """A bulk operation. `state` is pending, running, done, cancelled or failed.

    `expected` was counted at the start; `matched` = `changed` + `skipped` + `errors` is what was met so far.
    """

    id: UUID
    verb: str
    state: str
    filter: str
    reason: str
    priority: int | None
    topic: str
    delay_ms: int
    per_second: int
    expected: int
    expected_exactly: bool
    matched: int
    changed: int
    skipped: int
    errors: int
    error: str
    who: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    instance: str

    @property
    def over(self) -> bool:
        """True once nothing more will be changed."""
        return self.state in ("done", "cancelled", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkPreview:
    """What an operation would meet: of `total` jobs, `eligible` are in a state that the verb can change."""

    filter: str
    total: int
    exact: bool
    eligible: int
    by_state: dict[str, int]
    sample: list[JobInfo]


class Bulk:
    """`hg.admin.bulk`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ids = new_id_maker()

    async def preview(self, verb: str, filter: str, **options: Unpack[PlanOptions]) -> BulkPreview:  # noqa: A002
        """Count and sample what an operation would meet; nothing is changed."""
        found = await self._connection.call(PREVIEW, _plan(verb, filter, options), timeout=GIVE_UP_SECONDS)
        sample = [job_info(job, self._connection.encryption) for job in found.sample]
        return record(BulkPreview, found, by_state=by_state(found.counts), sample=sample)

    async def start(
        self,
        verb: str,
        filter: str,  # noqa: A002 - the word of the interface
        *,
        id: UUID | str | None = None,  # noqa: A002
        **options: Unpack[PlanOptions],
    ) -> BulkOperation:
        """Start cancel, redrive, discard, reprioritise or move over everything that matches now.

        The same `id` with the same plan is the same operation, however often it is sent.
        """
        known = self._ids.next_id() if id is None else parse_job_id(id)
        request = pb.StartBulkRequest(id=known.bytes, plan=_plan(verb, filter, options))
        return operation_info(await self._connection.call(START, request, timeout=GIVE_UP_SECONDS))

    async def get(self, operation_id: UUID | str) -> BulkOperation:
        """Read one operation. Raises NotFound."""
        known = parse_job_id(operation_id)
        return operation_info(
            await self._connection.call(GET, pb.GetBulkRequest(id=known.bytes), about=("operation", str(known)))
        )

    async def list(
        self, *, active: bool = False, limit: int = 50, before: UUID | str | None = None
    ) -> list[BulkOperation]:
        """Operations, newest first; `before` is the last one of the page before."""
        last = b"" if before is None else parse_job_id(before).bytes
        check_page_size(limit)
        request = pb.ListBulkRequest(active=active, limit=limit, before=last)
        return [operation_info(one) for one in (await self._connection.call(LIST, request)).operations]

    async def cancel(self, operation_id: UUID | str, *, reason: str = "") -> BulkOperation:
        """End it where it stands: when this returns, nothing more is changed. Harmless when it is over."""
        known = parse_job_id(operation_id)
        request = pb.CancelBulkRequest(id=known.bytes, reason=utf8_text(reason, field="reason"))
        return operation_info(await self._connection.call(CANCEL, request, about=("operation", str(known))))

    async def wait(
        self,
        operation_id: UUID | str,
        *,
        timeout: float = 3600.0,  # noqa: ASYNC109
        progress: Callable[[BulkOperation], None] | None = None,
        every: float = 0.25,
    ) -> BulkOperation:
        """Return the operation once it is over, or after `timeout` seconds; `progress` is called with every read."""
        until = asyncio.get_running_loop().time() + timeout
        while True:
            found = await self.get(operation_id)
            if progress is not None:
                progress(found)
            left = until - asyncio.get_running_loop().time()
            if found.over or left <= 0:
                return found
            await asyncio.sleep(min(every, left))


def operation_info(found: pb.BulkOperation) -> BulkOperation:
    """Read an operation off the wire."""
    state = pb.BulkState.Name(found.state).removeprefix("BULK_").lower()
    return record(BulkOperation, found, found.plan, state=state)


def _plan(verb: str, text: str, options: PlanOptions) -> pb.BulkPlan:
    if verb not in VERBS:
        raise InvalidInput("verb", f"must be one of {', '.join(VERBS)}, got {shown(verb)}")
    unknown = sorted(options.keys() - PlanOptions.__annotations__.keys())
    if unknown:
        raise InvalidInput("options", f"has no {', '.join(unknown)}")
    reason = utf8_text(options.get("reason", ""), field="reason")
    plan = pb.BulkPlan(verb=verb, filter=str(parse(text)), reason=reason)
    if "priority" in options:
        plan.priority = priority_of(options["priority"])
    if "topic" in options:
        plan.topic = utf8_text(options["topic"], field="topic")
    if "delay" in options:
        plan.delay_ms = delay_in_ms(options["delay"])
    if "per_second" in options:
        plan.per_second = check_integer(options["per_second"], field="per_second", low=0, high=2**31 - 1)
    return plan
