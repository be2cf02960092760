"""How a route is declared: its method and path, and the gRPC method whose rule it follows.

    @post("/v1/jobs", uses="ProducerService/Submit", status=201)
    async def submit_job(request: ApiRequest, data: NewJob) -> Response[SubmitReceipt]:
        \"\"\"Submit a job.\"\"\"

The name of the function is the operation id, and its docstring the summary and the description of the document.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Annotated, Any, Final, TypeAlias
from uuid import UUID

from litestar.handlers import HTTPRouteHandler
from litestar.params import PathParameter, QueryParameter

from headgate.api.http.auth import OPEN, OPERATION, RULE
from headgate.domain import limits

PACKAGE: Final = "headgate.v1"
TAGGED: Final = "etag"
"""The option of a route that answers 304 to If-None-Match."""
PRODUCES: Final = "produces"
"""The option of a route whose answer is not JSON: its media type."""
STATUSES: Final = "statuses"
"""The option of a route with further statuses of success: what each means."""
OPTIONAL_BODY: Final = "optional_body"

Declare: TypeAlias = Callable[[Callable[..., Any]], HTTPRouteHandler]
PathId: TypeAlias = Annotated[UUID, PathParameter(description="A UUID.")]
PageSize: TypeAlias = Annotated[int, QueryParameter(ge=1, le=limits.PAGE_MAX, description="Maximum size of the page.")]


def get(path: str, *, uses: str, **more: Any) -> Declare:
    """A route that reads."""
    return _route("GET", path, uses=uses, **more)


def post(path: str, *, uses: str, **more: Any) -> Declare:
    """A route that creates or does something."""
    return _route("POST", path, uses=uses, **more)


def put(path: str, *, uses: str, **more: Any) -> Declare:
    """A route that creates or replaces."""
    return _route("PUT", path, uses=uses, **more)


def patch(path: str, *, uses: str, **more: Any) -> Declare:
    """A route that changes what is given."""
    return _route("PATCH", path, uses=uses, **more)


def delete(path: str, *, uses: str, **more: Any) -> Declare:
    """A route that removes."""
    return _route("DELETE", path, uses=uses, **more)


def open_get(path: str, **more: Any) -> Declare:
    """A route without a token; it must reveal nothing."""
    return _route("GET", path, uses=None, **more)


def routes_in(module: ModuleType) -> list[HTTPRouteHandler]:
    """What a module serves: all routes that are declared in it, in their order."""
    return [one for one in vars(module).values() if isinstance(one, HTTPRouteHandler)]


def _route(
    method: Any,
    path: str,
    *,
    uses: str | None,
    status: int = 200,
    etag: bool = False,
    produces: str = "",
    statuses: dict[int, str] | None = None,
    **more: Any,
) -> Declare:
    options: dict[str, Any] = {OPEN: True} if uses is None else {RULE: f"/{PACKAGE}.{uses}"}
    options |= {OPERATION: "", TAGGED: etag, PRODUCES: produces, STATUSES: statuses or {}}

    def declared(function: Callable[..., Any]) -> HTTPRouteHandler:
        summary, _, description = inspect.cleandoc(function.__doc__ or "").partition("\n")
        data = inspect.signature(function).parameters.get("data")
        options[OPERATION] = function.__name__
        options[OPTIONAL_BODY] = data is not None and data.default is not inspect.Parameter.empty
        return HTTPRouteHandler(
            path,
            http_method=method,
            status_code=status,
            opt=options,
            operation_id=function.__name__,
            summary=summary.rstrip("."),
            description=description.strip() or None,
            **more,
        )(function)

    return declared
