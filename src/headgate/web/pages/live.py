"""The stream of hints that open pages follow: `static/js/hints.js` reads it, one for each browser."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from litestar import Response
from litestar.params import HeaderParameter, QueryParameter

from headgate.api.http.handover import StreamResponse
from headgate.domain.hints import VERSIONS_MAX_CHARS, Hint
from headgate.web.guard import session_secret
from headgate.web.request import PageRequest
from headgate.web.routing import page

RETRY_MS: Final = 3_000


@page("/live", uses="AdminService/Status", download=True)
async def follow_hints(
    request: PageRequest,
    after: Annotated[str, QueryParameter(max_length=VERSIONS_MAX_CHARS)] = "",
    last_event_id: Annotated[str, HeaderParameter(name="Last-Event-ID", max_length=VERSIONS_MAX_CHARS)] = "",
) -> Response[bytes]:
    """Server-sent events: `hint` with the kinds that have changed. Ends with the session."""
    sessions, secret = request.cases.web_sessions, session_secret(request)
    hints = await request.cases.live.open(
        request.caller,
        last_event_id=last_event_id or after,
        still_open=None if request.visitor.dev else lambda: sessions.identify(secret),
    )
    answer = StreamResponse(hints, encoded, media_type="text/event-stream")
    answer.headers.update({"cache-control": "no-store", "x-accel-buffering": "no"})
    return answer


def encoded(hint: Hint) -> bytes:
    """A hint as it is in the stream; a comment, if all that it reports is a stream that is alive."""
    if hint.alive:
        return b": alive\n\n"
    data = msgspec.json.encode({"kinds": hint.kinds})
    return f"retry: {RETRY_MS}\nid: {hint.versions}\nevent: hint\n".encode() + b"data: " + data + b"\n\n"
