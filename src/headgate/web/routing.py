"""How a page and an action are declared: the path, and the gRPC method whose rule decides who may use it.

    @page("/topics/{topic:str}", uses="TopicService/GetTopic")
    async def show_topic(request: PageRequest, topic: str) -> Html: ...

    @action("/topics/{topic:str}/pause", uses="AdminService/Pause", confirm=True)
    async def pause_topic(request: PageRequest, topic: str) -> Html: ...

`uses` has the same meaning as for routes of the REST API: no page has a rule of its own, and no action does what REST
cannot do. A test compares both (tests/unit/test_web_routes.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

from litestar.enums import MediaType
from litestar.handlers import HTTPRouteHandler

from headgate.api.http.auth import OPEN, OPERATION, RULE
from headgate.api.http.routing import PACKAGE

PREFIX: Final = "/ui"
CONFIRM: Final = "confirm"
"""The option of an action that is done only when its form is confirmed."""
DOWNLOAD: Final = "download"
"""The option of a page whose answer is a file, not HTML."""
PART: Final = "part"
"""The option of a page whose answer is always a fragment or data."""

Declare: TypeAlias = Callable[[Callable[..., Any]], HTTPRouteHandler]


def page(path: str, *, uses: str, download: bool = False, part: bool = False) -> Declare:
    """A page: GET. It changes nothing. `download`: its answer is a file; `part`: always a fragment or data.

    Tests open every other page in a browser (tests/browser/test_smoke.py).
    """
    return _route("GET", path, {RULE: rule_of(uses), DOWNLOAD: download, PART: part})


def action(path: str, *, uses: str, confirm: bool = False) -> Declare:
    """A change: POST, with the token of the form. `confirm`: only after a dialog, or a page that asks."""
    return _route("POST", path, {RULE: rule_of(uses), CONFIRM: confirm})


def open_page(path: str) -> Declare:
    """A page without a login; it must reveal nothing."""
    return _route("GET", path, {OPEN: True})


def open_action(path: str) -> Declare:
    """A change without a login. It needs the token of the form as well."""
    return _route("POST", path, {OPEN: True})


def rule_of(uses: str) -> str:
    """The name of a rule in control/permissions.py."""
    return f"/{PACKAGE}.{uses}"


def safe_path(path: str) -> str:
    """Where to go next: a page of the dashboard, never another site, and never the login."""
    try:
        parts = urlsplit(path)
    except ValueError:  # such as //[
        return PREFIX
    inside = parts.path == PREFIX or parts.path.startswith(f"{PREFIX}/")
    # Browsers resolve these, encoded too: the path would lead out of the dashboard.
    inside = inside and not any(unquote(one) in (".", "..") for one in parts.path.split("/"))
    plain = not parts.scheme and not parts.netloc and "\\" not in path and path.isascii() and path.isprintable()
    return path if inside and plain and not parts.path.startswith(f"{PREFIX}/login") else PREFIX


def _route(method: Any, path: str, options: dict[str, Any]) -> Declare:
    def declared(function: Callable[..., Any]) -> HTTPRouteHandler:
        return HTTPRouteHandler(
            (PREFIX + path).rstrip("/"),
            http_method=method,
            status_code=200,
            media_type=MediaType.HTML,
            opt={**options, OPERATION: function.__name__},
            include_in_schema=False,
        )(function)

    return declared
