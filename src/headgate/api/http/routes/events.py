"""The stream of events, as server-sent events."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Response
from litestar.params import FromQuery, HeaderParameter, QueryParameter

from headgate.api.http.codec import at_us
from headgate.api.http.handover import StreamResponse
from headgate.api.http.problems import item_error
from headgate.api.http.request import ApiRequest
from headgate.api.http.routing import get
from headgate.domain.errors import InvalidInput
from headgate.domain.events import (
    POSITION_MAX_CHARS,
    Alive,
    Ended,
    EventFilter,
    Gap,
    Happened,
    Opened,
    StreamEvent,
    StreamItem,
)

TAG = ["events"]
RETRY_MS = 2_000
"""When a browser connects again."""
LastEventId = Annotated[
    str,
    HeaderParameter(
        name="Last-Event-ID", max_length=POSITION_MAX_CHARS, description="The last id received: go on after it."
    ),
]


def _listed(what: str) -> Any:
    return QueryParameter(max_length=20_000, description=f"{what}, separated by commas; empty: all.")


@get(
    "/v1/events",
    uses="EventService/ReadEvents",
    tags=TAG,
    produces="text/event-stream",
)
async def follow_events(
    request: ApiRequest,
    topic: Annotated[str, _listed("Topics")] = "",
    job_id: Annotated[str, _listed("Ids of jobs")] = "",
    kind: Annotated[str, _listed("Kinds of events, such as job.completed")] = "",
    batch: FromQuery[UUID | None] = None,
    last_event_id: LastEventId = "",
) -> Response[bytes]:
    """Follow what happens to jobs and topics (server-sent events).

    The stream begins with the event `open`. Reconnect with Last-Event-ID to go on where it ended; `gap` says that some
    events are not known any more. `end` is the last event and says why.
    """
    wanted = EventFilter(
        topics=frozenset(_parts(topic)),
        jobs=frozenset(_job_id(one) for one in _parts(job_id)),
        kinds=frozenset(_parts(kind)),
        batch=batch,
    )
    items = await request.cases.events.open(request.caller, wanted, last_event_id=last_event_id)
    return StreamResponse(items, encoded, media_type="text/event-stream")


def encoded(item: StreamItem) -> bytes:
    """One item as it is in the stream."""
    match item:
        case Opened(position=position):
            return b"retry: %d\n" % RETRY_MS + _event("open", {}, position)
        case Gap(since=since, until=until, reason=reason):
            return _event("gap", {"since_us": at_us(since), "until_us": at_us(until), "reason": reason})
        case Happened(event=event, position=position):
            return _event(event.kind, _data(event), position)
        case Alive(position=position):
            return f": alive\nid: {position}\n\n".encode()
        case Ended(error=error):
            return _event("end", item_error(error))


def _event(name: str, data: object, position: object = None) -> bytes:
    line = f"event: {name}\n" if position is None else f"id: {position}\nevent: {name}\n"
    return line.encode() + b"data: " + msgspec.json.encode(data) + b"\n\n"


def _data(event: StreamEvent) -> dict[str, object]:
    found: dict[str, object] = {"event_id": event.id, "kind": event.kind, "at_us": at_us(event.at)}
    if event.topic:
        found["topic"] = event.topic
    if event.job_id is not None:
        found["job_id"] = str(event.job_id)
    return found | dict(event.data)


def _parts(text: str) -> list[str]:
    return [part for one in text.split(",") if (part := one.strip())]


def _job_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput("job_id", "is not a UUID", hint="separate several by commas") from None
