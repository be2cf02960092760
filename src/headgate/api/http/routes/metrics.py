"""`GET /metrics`: metrics for Prometheus. Without a token on loopback, or if the server is started so."""

from __future__ import annotations

from litestar import Response
from litestar.handlers import HTTPRouteHandler

from headgate.api.http.request import ApiRequest
from headgate.api.http.routing import get, open_get

PATH = "/metrics"


@get(PATH, uses="AdminService/Status", tags=["health"], include_in_schema=False)
async def metrics(request: ApiRequest) -> Response[bytes]:
    """Metrics of this server and its queue, for a token with the scope `read` or `system`."""
    text, media_type = await request.cases.metrics.page(request.caller, request.headers.get("accept", ""))
    return Response(text, media_type=media_type)


@open_get(PATH, tags=["health"], include_in_schema=False)
async def open_metrics(request: ApiRequest) -> Response[bytes]:
    """The same without a token."""
    text, media_type = await request.cases.metrics.page(None, request.headers.get("accept", ""))
    return Response(text, media_type=media_type)


def routes(*, is_open: bool) -> tuple[HTTPRouteHandler, ...]:
    """The route of this server."""
    return (open_metrics if is_open else metrics,)
