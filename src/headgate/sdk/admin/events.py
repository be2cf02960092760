"""`hg.admin.events`: what happens to jobs and topics, as it happens."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from headgate.domain.ids import JobId
from headgate.sdk.connection import Connection
from headgate.sdk.records import record
from headgate.sdk.rpc import Method
from headgate.wire import events_pb2 as pb

READ: Final = Method("EventService/ReadEvents", pb.ReadEventsRequest, pb.ReadEventsResponse)
WAIT_MS: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. An event that comes again, after a lost answer, has the same `id`.

    `position`, where it is set, is what `after` takes to go on behind this event.
    """

    id: str
    kind: str
    at: datetime
    topic: str = ""
    job_id: JobId | None = None
    state: str = ""
    epoch: int = 0
    attempt: int = 0
    run_at: datetime | None = None
    worker: str = ""
    actor: str = ""
    reason: str = ""
    error_type: str = ""
    error_message: str = ""
    detail: Mapping[str, object] = field(default_factory=dict, hash=False)
    position: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventGap:
    """Some events between these times are not known any more."""

    since: datetime
    until: datetime
    reason: str


async def events(
    connection: Connection,
    *,
    topics: Iterable[str],
    job_ids: Iterable[UUID],
    kinds: Iterable[str],
    batch: UUID | None,
    after: str,
) -> AsyncIterator[Event | EventGap]:
    """Events from now on, or behind a position, until the caller stops."""
    request = pb.ReadEventsRequest(
        topics=topics,
        job_ids=[one.bytes for one in job_ids],
        kinds=kinds,
        batch_id=b"" if batch is None else batch.bytes,
        last_event_id=after,
        wait_ms=WAIT_MS,
    )
    while True:
        answer = await connection.call(READ, request)
        if answer.HasField("gap"):
            yield record(EventGap, answer.gap)
        for index, one in enumerate(answer.events, 1):
            yield _event(one, answer.last_event_id if index == len(answer.events) else "")
        request.last_event_id = answer.last_event_id


def _event(one: pb.StreamEvent, position: str) -> Event:
    return record(Event, one, detail=json.loads(one.detail) if one.detail else {}, position=position)
