"""Errors as pages: the same codes and statuses as the REST API, with the request id and what to do.

A part of a page (htmx) gets no page: the message is shown as a toast, and the field that was refused is marked.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final, cast
from urllib.parse import urlencode

from litestar import Request, Response
from litestar.exceptions import HTTPException

from headgate.api.http.problems import Options, Problem, Unexpected, headers_of, problem_of, status_of, translated
from headgate.domain.errors import HeadgateError
from headgate.web.forms import Form
from headgate.web.request import HTML, Html, PageRequest
from headgate.web.routing import PREFIX
from headgate.web.visitor import LoginRequired

log = logging.getLogger("headgate.web")
LOGIN: Final = f"{PREFIX}/login"
_TITLES: Final = {
    401: "Sign in first",
    403: "Not permitted",
    404: "Not found",
    409: "Not possible now",
    429: "Too many requests",
    500: "An error of Headgate's own",
    503: "Not available now",
}
_ADVICE: Final = {
    403: "Sign in with a key that has the scope, or ask an administrator for one.",
    404: "It may have been removed by retention, or belong to another tenant. Check the address.",
    409: "It has changed meanwhile. Go back, reload the page and try again.",
    500: "The log of the server has the traceback under the request id below.",
    503: "Headgate is waiting for its database, or is stopping. Try again in a moment.",
}


_TITLES_BY_CODE: Final = {"read_only": "The database is read-only"}
_ADVICE_BY_CODE: Final = {
    "read_only": "Pages can be read. Changes are possible again when the server reaches a database that takes writes."
}


class NotConfirmed(Exception):
    """An action that needs a confirmation came without one: a browser without JavaScript."""

    def __init__(self, form: Form) -> None:
        super().__init__("not confirmed")
        self.form = form


def on_login_required(request: Request[Any, Any, Any], error: LoginRequired) -> Html:
    """Go to the login, and back to this page afterwards."""
    asked = cast("PageRequest", request)
    if asked.is_fragment:
        query = urlencode({"next": asked.here})
        return Response("", status_code=401, headers={"hx-redirect": f"{LOGIN}?{query}"}, media_type=HTML)
    if request.method != "GET":
        return _page(asked, error)
    query = urlencode({"next": asked.address})
    return Response("", status_code=303, headers={"location": f"{LOGIN}?{query}"}, media_type=HTML)


def on_not_confirmed(request: Request[Any, Any, Any], error: NotConfirmed) -> Html:
    """The page that asks."""
    asked = cast("PageRequest", request)
    return asked.render(
        "confirm.html",
        action=asked.path,
        question=error.form.raw("question") or "Do this?",
        typed=error.form.raw("confirm_text"),
        button=error.form.raw("button") or "Confirm",
        fields=[(name, value) for name, value in error.form if name not in ("csrf", "confirmed")],
        back=asked.here,
    )


def on_error(request: Request[Any, Any, Any], error: HeadgateError) -> Html:
    """What a use case refuses."""
    error.__traceback__ = None  # it refers to the request, and would keep all of it in memory
    return _page(cast("PageRequest", request), error)


def on_http_exception(request: Request[Any, Any, Any], error: HTTPException) -> Html:
    """What Litestar refuses: paths, methods, parameters."""
    return _page(cast("PageRequest", request), translated(request, error))


def on_bug(request: Request[Any, Any, Any], error: Exception) -> Html:
    """What nothing else expects: the log gets all of it, the browser only where to look."""
    log.error("page_failed method=%s path=%s", request.method, cast("PageRequest", request).path, exc_info=error)
    return _page(cast("PageRequest", request), Unexpected())


def on_options(_request: Request[Any, Any, Any], options: Options) -> Html:
    """What a path can be asked for."""
    return Response("", status_code=204, headers={"allow": options.allowed}, media_type=HTML)


def _page(request: PageRequest, error: HeadgateError) -> Html:
    status, problem = status_of(error), problem_of(error)
    headers = {name: value for name, value in headers_of(error).items() if name != "www-authenticate"}
    if request.is_fragment:
        events = {"hg:toast": {"text": _sentence(problem), "level": "error"}}
        if problem.field:
            events["hg:invalid"] = {"field": problem.field, "text": problem.detail}
        mode = "1" if request.visitor.read_only else "0"
        headers |= {"hx-trigger": json.dumps(events), "hx-reswap": "none", "hg-read-only": mode}
        return Response("", status_code=status, headers=headers, media_type=HTML)
    made = request.render(
        "error.html",
        status_code=status,
        problem=problem,
        heading=_TITLES_BY_CODE.get(problem.code) or _TITLES.get(status, problem.title),
        advice=problem.hint or _ADVICE_BY_CODE.get(problem.code) or _ADVICE.get(status, ""),
        back=request.here if request.method == "POST" else "",
    )
    made.headers.update(headers)
    return made


def _sentence(problem: Problem) -> str:
    reference = f" (request {problem.request_id})" if problem.status >= 500 else ""
    return f"{problem.detail}{reference}"
