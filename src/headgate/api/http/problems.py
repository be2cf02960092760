"""Errors as problem details (RFC 9457): the table from error codes to HTTP statuses, and the body."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException, ValidationException

from headgate.domain.errors import HeadgateError, InvalidInput, TooLarge, shortened
from headgate.domain.log_fields import REQUEST_ID

log = logging.getLogger("headgate.http")
MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:headgate:error:"
TEXT_MAX_CHARS: Final = 1_000
RETRY_SECONDS: Final = 1
"""What a client waits when this instance, or its database, is not available and the error names no time."""

STATUS: Final = {
    "invalid_input": 400,
    "payload_mismatch": 400,
    "invalid_filter": 400,
    "protocol_error": 400,
    "unauthenticated": 401,
    "token_revoked": 401,
    "permission_denied": 403,
    "quota_exceeded": 429,
    "not_found": 404,
    "unknown_route": 404,
    "unknown_method": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "session_silent": 408,
    "conflict": 409,
    "bulk_conflict": 409,
    "refused": 409,
    "wrong_state": 409,
    "stale_lease": 409,
    "dependency_cycle": 409,
    "batch_sealed": 409,
    "unique_taken": 409,
    "version_conflict": 409,
    "already_exists": 409,
    "superseded": 409,
    "unknown_jobs": 409,
    "worker_id_taken": 409,
    "too_large": 413,
    "unsupported_media_type": 415,
    "too_slow": 422,  # a retry would take as long
    "backlog_full": 429,
    "overloaded": 429,
    "rate_limited": 429,
    "session_overflow": 429,
    "slow_reader": 429,
    "too_many_streams": 429,
    "store_error": 500,
    "internal": 500,
    "session_forgotten": 503,
    "shutting_down": 503,
    "store_unavailable": 503,
    "credentials_unavailable": 503,
    "store_busy": 503,
    "row_locked": 503,
    "read_only": 503,
    "outcome_unknown": 503,
    "storage_full": 507,
}
"""By code; a code that is not here is 500."""

_BOUND: Final = re.compile(
    r"Expected `(?P<kind>\w+)(?: \| null)?`(?P<length> of length)? (?P<sign>[<>]=) (?P<bound>\S+)"
)
_UNITS: Final = {"str": "characters", "array": "elements", "object": "fields"}


class UnknownRoute(HeadgateError):
    """The server has no such path."""

    code = "unknown_route"

    def __init__(self, path: str) -> None:
        super().__init__(f"no path {shortened(path)}; /v1/openapi.json lists all")


class MethodNotAllowed(HeadgateError):
    """The path exists, but not with this method."""

    code = "method_not_allowed"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{shortened(method, 20)} is not possible here; use one of {allowed}")
        self.allowed = allowed


class UnsupportedMediaType(HeadgateError):
    """The body is of a type that the path does not take."""

    code = "unsupported_media_type"

    def __init__(self, given: str) -> None:
        what = f"is {shortened(given)}" if given else "has no Content-Type"
        super().__init__(f"the body {what}; send application/json")


class Options(Exception):
    """The answer to OPTIONS: what a path can be asked for."""

    def __init__(self, methods: set[str]) -> None:
        super().__init__("options")
        self.allowed = allowed_of(methods)


def allowed_of(methods: Iterable[str]) -> str:
    """The header Allow: HEAD wherever GET is."""
    known = set(methods)
    return ", ".join(sorted(known | {"HEAD"} if "GET" in known else known))


class Unexpected(HeadgateError):
    """A bug of ours. The log has the traceback, under the request id."""

    code = "internal"

    def __init__(self) -> None:
        super().__init__("an error of Headgate's own; the log of the server has the traceback under the request id")


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Why a request failed (RFC 9457). `code` is stable: docs/reference/errors.md lists all."""

    type: Annotated[str, msgspec.Meta(description="`urn:headgate:error:` and the code.")]
    title: Annotated[str, msgspec.Meta(description="The code in words.")]
    status: Annotated[int, msgspec.Meta(description="The HTTP status.")]
    detail: Annotated[str, msgspec.Meta(description="What happened, to what, and what to do.")]
    code: Annotated[str, msgspec.Meta(description="Stable name of the error, the same as over gRPC.")]
    field: Annotated[str, msgspec.Meta(description="The field, parameter or header that was refused.")] = ""
    limit: Annotated[int | None, msgspec.Meta(description="The limit that the value exceeds.")] = None
    hint: Annotated[str, msgspec.Meta(description="What to do instead.")] = ""
    retry_after_ms: Annotated[int, msgspec.Meta(description="When to send the request again.")] = 0
    job_id: Annotated[str, msgspec.Meta(description="The job that has the id or key already.")] = ""
    request_id: Annotated[str, msgspec.Meta(description="Names the request in the log of the server.")] = ""


def status_of(error: HeadgateError) -> int:
    """The status of an error; 500 for a code that is not in the table."""
    return STATUS.get(error.code, 500)


def problem_of(error: HeadgateError) -> Problem:
    """The body of an error."""
    status = status_of(error)
    return Problem(
        type=f"{TYPE_PREFIX}{error.code}",
        title=error.code.replace("_", " ").capitalize(),
        status=status,
        detail=shortened(str(error), TEXT_MAX_CHARS),
        code=error.code,
        field=error.field if isinstance(error, InvalidInput) else "",
        limit=error.limit if isinstance(error, TooLarge) else None,
        hint=error.hint if isinstance(error, InvalidInput) else "",
        retry_after_ms=retry_after_ms(error),
        job_id=str(getattr(error, "first", "")),
        request_id=REQUEST_ID.get(),
    )


class ItemError(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Why one item of a request failed; the others are not affected."""

    code: str
    message: str
    field: str = ""
    retry_after_ms: int = 0


def item_error(error: HeadgateError | None) -> ItemError | None:
    """The error of one item."""
    if error is None:
        return None
    return ItemError(
        code=error.code,
        message=shortened(str(error), TEXT_MAX_CHARS),
        field=error.field if isinstance(error, InvalidInput) else "",
        retry_after_ms=retry_after_ms(error),
    )


def retry_after_ms(error: HeadgateError) -> int:
    """When the same request may succeed; 0: unknown."""
    known: int = getattr(error, "retry_after_ms", 0)
    return known or (RETRY_SECONDS * 1_000 if status_of(error) == 503 else 0)


def headers_of(error: HeadgateError) -> dict[str, str]:
    """The headers of an error."""
    headers: dict[str, str] = {}
    status = status_of(error)
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="headgate"'
    if wait := retry_after_ms(error):
        headers["retry-after"] = str(math.ceil(wait / 1_000))
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = error.allowed
    return headers


def response_of(error: HeadgateError) -> Response[Problem]:
    """An error as a response."""
    # Its traceback refers to the request, and would keep all of it in memory until the garbage collector comes.
    error.__traceback__ = None
    return Response(problem_of(error), status_code=status_of(error), media_type=MEDIA_TYPE, headers=headers_of(error))


# ---------------------------------------------------------------------- exception handlers


def on_error(_request: Request[Any, Any, Any], error: HeadgateError) -> Response[Problem]:
    """What a use case refuses."""
    return response_of(error)


def on_options(_request: Request[Any, Any, Any], options: Options) -> Response[None]:
    """What a path can be asked for."""
    return Response(None, status_code=204, headers={"allow": options.allowed})


def on_http_exception(request: Request[Any, Any, Any], error: HTTPException) -> Response[Problem]:
    """What Litestar refuses: paths, methods, parameters."""
    return response_of(translated(request, error))


def on_bug(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    """What nothing else expects: the log gets all of it, the client only where to look."""
    path = request.scope["path"].replace("\0", "/")
    log.error("request_failed method=%s path=%s", request.method, path, exc_info=error)
    return response_of(Unexpected())


def translated(request: Request[Any, Any, Any], error: HTTPException) -> HeadgateError:
    """An error of Litestar as one of ours."""
    match error:
        case NotFoundException():
            return UnknownRoute(request.scope["path"].replace("\0", "/"))
        case MethodNotAllowedException():
            known = (error.headers or {}).get("allow", "").replace(" ", "").split(",")
            return MethodNotAllowed(request.method, allowed_of(known))
        case ValidationException(extra=[{"message": message, **place}, *_]):
            field = str(place.get("key", "body"))
            if field == "data":  # the name of the parameter that gets the body
                return InvalidInput("body", "is missing", hint="send a JSON object")
            return refused_value(field, str(message))
        case HTTPException(status_code=status, detail=detail) if status < 500:
            return InvalidInput("request", _lowered(detail))
        case _:
            return Unexpected()


def refused_value(field: str, problem: str) -> InvalidInput:
    """What msgspec refuses about a value, with the code that gRPC sends for it, and its limit."""
    found = _BOUND.fullmatch(problem)
    if found is None:
        return InvalidInput(field, _lowered(problem))
    bound, most = found["bound"].removesuffix(".0"), found["sign"] == "<="
    if not found["length"]:
        return InvalidInput(field, f"must be at {'most' if most else 'least'} {bound}")
    unit = _UNITS.get(found["kind"], "elements")
    if most:
        return TooLarge(field, size=None, limit=int(bound), unit=unit)
    return InvalidInput(field, f"must have at least {bound} {unit}")


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]
