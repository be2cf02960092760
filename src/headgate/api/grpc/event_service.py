"""Events by calls: translates messages, and delegates to `control/events`."""

from __future__ import annotations

import json
from typing import Any, ClassVar
from uuid import UUID

from headgate.api.grpc.auth import caller
from headgate.api.grpc.codec import at_us, state_of
from headgate.api.grpc.methods import Context
from headgate.control.events import Events
from headgate.domain.errors import InvalidInput
from headgate.domain.events import EventFilter, StreamEvent
from headgate.domain.ids import ID_BYTES
from headgate.domain.states import State
from headgate.wire import events_pb2


class EventService:
    """ReadEvents."""

    protocol: ClassVar = events_pb2.DESCRIPTOR.services_by_name["EventService"]

    def __init__(self, events: Events) -> None:
        self._events = events

    async def read_events(self, request: events_pb2.ReadEventsRequest, _call: Context) -> events_pb2.ReadEventsResponse:
        """The events after a position."""
        wanted = EventFilter(
            topics=frozenset(request.topics),
            jobs=frozenset(_uuid(one, field="job_ids") for one in request.job_ids),
            kinds=frozenset(request.kinds),
            batch=_uuid(request.batch_id, field="batch_id") if request.batch_id else None,
        )
        page = await self._events.read(caller(), wanted, last_event_id=request.last_event_id, wait_ms=request.wait_ms)
        answer = events_pb2.ReadEventsResponse(
            events=[_event(one) for one in page.events], last_event_id=str(page.position)
        )
        if page.gap is not None:
            answer.gap.since_us, answer.gap.until_us = at_us(page.gap.since), at_us(page.gap.until)
            answer.gap.reason = page.gap.reason
        return answer


def _uuid(raw: bytes, *, field: str) -> UUID:
    if len(raw) != ID_BYTES:
        raise InvalidInput(field, f"an id has {len(raw)} bytes; it must be the 16 bytes of a UUID")
    return UUID(bytes=raw)


def _event(event: StreamEvent) -> events_pb2.StreamEvent:
    data: dict[str, Any] = dict(event.data)
    state, detail = data.pop("state", None), data.pop("detail", None)
    others = {name: data.pop(name) for name in ("target", "verb") if name in data}
    return events_pb2.StreamEvent(
        id=event.id,
        kind=event.kind,
        at_us=at_us(event.at),
        topic=event.topic,
        job_id=b"" if event.job_id is None else event.job_id.bytes,
        state=state_of(None if state is None else State.parse(state)),
        detail=json.dumps(others | (detail or {})) if others or detail else "",
        **data,
    )
