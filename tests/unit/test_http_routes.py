"""The routes of the REST API: each follows a rule of the table, and every method of the table has a route."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler

from headgate.api.http.app import ROUTES, new_app
from headgate.api.http.auth import OPEN, RULE, Guard, query_parameters, takes_text
from headgate.api.http.examples import REQUESTS
from headgate.api.http.openapi import document, document_bytes
from headgate.api.http.request import decoded
from headgate.control.permissions import RULES
from headgate.domain.release import version

ROOT = Path(__file__).parents[2]
CHECKED_IN = ROOT / "docs/reference/openapi.json"
NOT_OVER_HTTP = {
    "/grpc.health.v1.Health/Check": "GET /health/ready",
    "/grpc.health.v1.Health/Watch": "GET /health/ready, asked again",
    "/headgate.v1.ProducerService/Produce": "a stream; POST /v1/jobs/batch",
    "/headgate.v1.WorkerService/Work": "a stream of frames",
    "/headgate.v1.WorkerService/StreamJobs": "a stream",
}
"""Methods without a route, and what there is instead."""


@pytest.fixture(scope="module")
def app() -> Litestar:
    cases = SimpleNamespace(validator=None, failed_logins=None, rates=None, version=version())
    return new_app(cast("Any", cases), dev=False)


def handlers() -> list[HTTPRouteHandler]:
    return [one for one in ROUTES if isinstance(one, HTTPRouteHandler)]


def test_every_method_has_a_route_or_a_reason_to_have_none() -> None:
    served = {one.opt[RULE] for one in handlers() if RULE in one.opt}
    assert served <= set(RULES)
    assert set(RULES) - served == set(NOT_OVER_HTTP)


def test_only_probes_and_the_document_need_no_token() -> None:
    free = {path for one in handlers() if one.opt.get(OPEN) for path in one.paths}
    assert free == {"/health/live", "/health/ready", "/v1/openapi.json"}
    assert all((RULE in one.opt) != bool(one.opt.get(OPEN)) for one in handlers())


def test_a_route_without_a_rule_is_refused_by_the_guard(app: Litestar) -> None:
    """Litestar adds routes of its own for the document; they must not be served."""
    added = [
        handler
        for route in app.routes
        for handler in getattr(route, "route_handlers", ())
        if RULE not in handler.opt and not handler.opt.get(OPEN) and "OPTIONS" not in handler.http_methods
    ]
    assert added, "if there are none any more, this test and the path of openapi_config can go"
    assert any(isinstance(guard, Guard) for one in added for guard in one.resolve_guards())


def test_paths_are_under_v1_or_health_and_operation_ids_are_unique(app: Litestar) -> None:
    found = document(app)
    assert all(path.startswith(("/v1/", "/health/")) for path in found["paths"])
    ids = [operation["operationId"] for path in found["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids))


def test_the_document_that_is_checked_in_is_the_one_that_is_served(app: Litestar) -> None:
    made = document_bytes(app)
    assert CHECKED_IN.read_bytes() == made, "the API has changed: run `make openapi`, and look at the difference"


def test_every_operation_describes_its_errors_its_access_and_its_answers(app: Litestar) -> None:
    found = document(app)
    assert found["openapi"].startswith("3.1")
    tags = {tag["name"] for tag in found["tags"]}
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            where = f"{method} {path}"
            assert operation["summary"], where
            assert set(operation["tags"]) <= tags, where
            if operation["security"]:
                assert {"400", "401", "403", "404", "default"} <= set(operation["responses"]), where
                assert "Requires the scope" in operation["description"], where


def test_every_example_is_a_body_of_its_operation(app: Litestar) -> None:
    by_id = {str(one.operation_id): one for one in handlers()}
    for operation, example in REQUESTS.items():
        route = by_id[operation].parsed_fn_signature.parameters["data"]
        decoded(json.dumps(example).encode(), route.annotation)
    with_body = {name for name, one in by_id.items() if "data" in one.parsed_fn_signature.parameters}
    assert set(REQUESTS) <= with_body


def test_the_query_of_a_route_is_known() -> None:
    (route,) = (one for one in handlers() if one.operation_id == "list_jobs")
    assert query_parameters(route, frozenset()) == {"filter", "limit", "cursor", "oldest_first"}
    (route,) = (one for one in handlers() if one.operation_id == "submit_job")
    assert query_parameters(route, frozenset()) == frozenset(), "a header is no query parameter"
    (route,) = (one for one in handlers() if one.operation_id == "get_result")
    assert query_parameters(route, frozenset({"job_id"})) == {"wait_seconds"}


@pytest.mark.parametrize(
    ("operation", "name", "text"),
    [
        ("list_audit", "since_us", False),
        ("list_bulk", "before", False),
        ("list_deliveries", "delivery_state", False),
        ("delete_schedule", "expected_version", False),
        ("list_schedules", "source", True),
        ("list_jobs", "filter", True),
    ],
)
def test_null_is_a_value_of_parameters_with_any_text_only(operation: str, name: str, *, text: bool) -> None:
    (route,) = (one for one in handlers() if one.operation_id == operation)
    assert takes_text(route, name) == text
