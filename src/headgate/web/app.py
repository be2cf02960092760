"""The dashboard as an application of its own, behind the same port as the REST API.

Its sessions are cookies and those of REST are tokens; neither takes the other, so no route has to tell them apart.
"""

from __future__ import annotations

from litestar import Litestar, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.types import ASGIApp

from headgate.api.http.auth import OPEN
from headgate.api.http.problems import Options, UnknownRoute
from headgate.api.use_cases import UseCases
from headgate.domain.errors import HeadgateError
from headgate.web.compression import Compressed
from headgate.web.errors import (
    NotConfirmed,
    on_bug,
    on_error,
    on_http_exception,
    on_login_required,
    on_not_confirmed,
    on_options,
)
from headgate.web.guard import PageGuard
from headgate.web.headers import SecurityHeaders
from headgate.web.pages import all_routes
from headgate.web.rendering import Rendering
from headgate.web.request import HTML, Html, PageRequest
from headgate.web.routing import PREFIX, open_page
from headgate.web.static_files import StaticFiles, static_route
from headgate.web.visitor import LoginRequired


def new_app(cases: UseCases) -> ASGIApp:
    """The dashboard of one instance."""
    files = StaticFiles()
    rendering = Rendering(files, version=cases.version, instance=cases.instance)
    routes = all_routes()
    rendering.serve([path for route in routes for path in route.paths])
    app = Litestar(
        route_handlers=[*routes, unknown_page, root, static_route(files)],
        guards=[PageGuard(cases)],
        request_class=PageRequest,
        exception_handlers={
            LoginRequired: on_login_required,
            NotConfirmed: on_not_confirmed,
            HeadgateError: on_error,
            HTTPException: on_http_exception,
            Options: on_options,
            Exception: on_bug,
        },
        openapi_config=None,
        state=State({"use_cases": cases, "rendering": rendering}, deep_copy=False),
        logging_config=None,
        debug=False,
        pdb_on_exception=False,
        request_max_body_size=None,  # the rule of each action bounds it: PageRequest.read_form
    )
    return Compressed(SecurityHeaders(app))


@open_page("/{rest:path}")
async def unknown_page(request: PageRequest, rest: FromPath[str]) -> Html:
    """Every other path."""
    del rest
    raise UnknownRoute(request.path)


@HTTPRouteHandler("/", http_method="GET", opt={OPEN: True}, include_in_schema=False)
async def root() -> Html:
    """The port without a path."""
    return Response("", status_code=303, headers={"location": PREFIX}, media_type=HTML)


def serves(path: str) -> bool:
    """Whether a path is one of the dashboard."""
    return path in ("/", PREFIX) or path.startswith(f"{PREFIX}/")
