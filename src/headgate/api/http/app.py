"""All routes under one roof."""

from __future__ import annotations

from typing import Final

from litestar import Litestar
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler

from headgate.api.http.auth import Guard
from headgate.api.http.openapi import DOCUMENT_ROUTES, PAGE_ROUTES, RawSchema, openapi_config
from headgate.api.http.problems import Options, on_bug, on_error, on_http_exception, on_options
from headgate.api.http.request import ApiRequest
from headgate.api.http.routes import (
    audit,
    batches,
    bulk,
    events,
    health,
    job_logs,
    job_verbs,
    jobs,
    keys,
    metrics,
    outcomes,
    pauses,
    retention,
    schedules,
    sessions,
    stats,
    system,
    tenants,
    topic_policies,
    topics,
    webhooks,
    work,
    workers,
)
from headgate.api.http.routing import routes_in
from headgate.api.use_cases import UseCases
from headgate.control.permissions import RULES
from headgate.domain.errors import HeadgateError

MODULES: Final = (
    *(jobs, job_logs, job_verbs, work, outcomes, events, batches, bulk, keys, sessions, tenants),
    *(topics, topic_policies, pauses, schedules, webhooks, workers, stats, retention, audit, health, system),
)
ROUTES: Final[tuple[HTTPRouteHandler, ...]] = (
    *(route for module in MODULES for route in routes_in(module)),
    *DOCUMENT_ROUTES,
)


def new_app(cases: UseCases, *, dev: bool, metrics_open: bool = False) -> Litestar:
    """The application of one instance. `dev` adds a page that calls the API from a browser.

    `metrics_open`: metrics need no token.
    """
    return Litestar(
        route_handlers=[*ROUTES, *metrics.routes(is_open=metrics_open), *(PAGE_ROUTES if dev else ())],
        guards=[Guard(cases.validator, RULES, cases.failed_logins, cases.rates)],
        request_class=ApiRequest,
        exception_handlers={
            HeadgateError: on_error,
            HTTPException: on_http_exception,
            Options: on_options,
            Exception: on_bug,
        },
        openapi_config=openapi_config(cases.version),
        plugins=[RawSchema()],
        state=State({"use_cases": cases}, deep_copy=False),
        logging_config=None,
        debug=False,
        pdb_on_exception=False,
        request_max_body_size=None,  # the rule of each route bounds it: ApiRequest.body
    )
