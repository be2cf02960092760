"""Every route, asked about objects of another tenant or topic: as if they did not exist.

Generated from the OpenAPI document: a route with a parameter that is not known here fails, and so does one without a
case. Objects are named by the path, in a body, or in a query; lists show nothing of others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias
from urllib.parse import quote

import httpx
import pytest

from tests.e2e.http.conftest import LIMITED, OTHER, OTHER_ADMIN, OWN_ADMIN, OWNER, SYSTEM, THIRD_ADMIN, Client
from tests.support import http_clients
from tests.support.dashboard import Visit
from tests.support.howto import HOWTO
from tests.support.server import ServerProcess

DOCUMENT = json.loads((HOWTO.parent / "reference/openapi.json").read_text())
NOBODYS = "01890000-0000-7000-8000-000000000000"
SECRET = "pay-f81d4fae"
MISSING = {
    "job_id": NOBODYS,
    "batch_id": NOBODYS,
    "operation_id": NOBODYS,
    "topic": "pay-00000000",
    "name": "pay-00000000/weekly",
    "worker": "payer-00000000",
    "webhook_id": NOBODYS,
    "delivery_id": NOBODYS,
    "key_id": "nokeyid0",
    "tenant": "nobody",
    "session_id": "nosession2",
}
BODIES = {"move_job": {"topic": "mail"}, "put_schedule": {"spec": {"topic": "mail", "timing": {"at_us": 1}}}}
"""In place of the example: about a topic that the tokens permit."""


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The method, the path and the description of each operation that names an object."""
    for path, found in DOCUMENT["paths"].items():
        for method, operation in found.items():
            if "{" in path:
                yield method, path, operation


@pytest.fixture(scope="module")
def objects(running: Any) -> dict[str, str]:
    """One of each kind that OWNER has, on a topic that LIMITED may not see."""
    server, _ = running
    headers = {"authorization": f"Bearer {OWNER}"}
    with http_clients.client(base_url=server.http_url, headers=headers) as own:
        job = own.post("/v1/jobs", json={"topic": SECRET, "payload": {"secret": "f81d4fae"}}).json()["id"]
        batch = own.post("/v1/batches", json={"name": SECRET, "on_done": {"topic": SECRET}}).json()["id"]
        plan = {"verb": "cancel", "filter": f"topic:{SECRET}-none"}
        operation = own.post("/v1/bulk", json=plan).json()["id"]
        spec = {"topic": SECRET, "timing": {"every": {"interval_ms": 3_600_000}}}
        assert own.put(f"/v1/schedules/{SECRET}%2Fweekly", json={"spec": spec}).status_code == 200
        assert own.post("/v1/jobs", json={"topic": f"{SECRET}-held"}).status_code < 300
        claim = {"worker_id": "payer-f81d4fae", "topics": [f"{SECRET}-held"], "wait_seconds": 20, "lease_seconds": 3600}
        assert len(own.post("/v1/jobs/claim", json=claim).json()["jobs"]) == 1  # so it is connected
        assert own.post("/v1/workers/payer-f81d4fae/stop").json()["code"] == "refused"  # it has no stream
        assert own.post("/v1/workers/payer-f81d4fae/quiet").status_code == 200
        endpoint = {"url": "https://93.184.215.14/f81d4fae", "events": ["job.dead"]}
        webhook = own.post("/v1/webhooks", json=endpoint).json()["id"]
        delivery = own.post(f"/v1/webhooks/{webhook}/test").json()["id"]
        assert own.patch(f"/v1/webhooks/{webhook}", json={"disabled": True}).status_code == 200
        admin = {"authorization": f"Bearer {OWN_ADMIN}"}
        key = own.post("/v1/keys", json={"name": SECRET, "scopes": ["read"]}, headers=admin).json()["info"]["id"]
    return {
        "job_id": job,
        "batch_id": batch,
        "operation_id": operation,
        "topic": SECRET,
        "name": f"{SECRET}/weekly",
        "worker": "payer-f81d4fae",
        "webhook_id": webhook,
        "delivery_id": delivery,
        "key_id": key,
        "tenant": "own",
        "session_id": _session(server),
    }


def _session(server: ServerProcess) -> str:
    """A browser that OWNER has signed in with."""
    browser = Visit(server.http_url)
    browser.http.headers["user-agent"] = "f81d4fae"
    browser.sign_in(OWNER)
    browser.close()
    headers = {"authorization": f"Bearer {OWN_ADMIN}"}
    found = http_clients.get(f"{server.http_url}/v1/sessions", headers=headers).json()["sessions"]
    (mine,) = (one["id"] for one in found if one["agent"] == "f81d4fae")
    return str(mine)


def asked(api: httpx.Client, method: str, path: str, operation: dict[str, Any], named: dict[str, str]) -> Any:
    """The answer, without what differs from one request to the next."""
    names = re.findall(r"{(\w+)}", path)
    assert set(names) <= set(MISSING), f"{path} names an object that this test does not know: add it"
    target = re.sub(r"{(\w+)}", lambda found: quote(named[found[1]], safe=""), path)
    body = None
    if "requestBody" in operation:
        example = operation["requestBody"]["content"]["application/json"].get("example", {})
        body = BODIES.get(operation["operationId"], example)
    answer = api.request(method, target, json=body)
    text = answer.text
    for name in names:
        text = text.replace(named[name], "?")
    assert SECRET not in text
    assert "f81d4fae" not in text
    return answer.status_code, re.sub(r'"(request_id|[a-z]+_us)":("[^"]*"|\d+),?', "", text)


@pytest.mark.req("O28")
@pytest.mark.parametrize("token", [OTHER, LIMITED], ids=["another tenant", "another topic"])
@pytest.mark.parametrize(
    ("method", "path", "operation"),
    list(operations()),
    ids=lambda one: one["operationId"] if isinstance(one, dict) else None,
)
def test_an_object_of_others_looks_like_one_that_does_not_exist(
    as_: Client, objects: dict[str, str], token: str, method: str, path: str, operation: dict[str, Any]
) -> None:
    api = as_(OTHER_ADMIN if token == OTHER and ("key_id" in path or "session_id" in path) else token)
    there = asked(api, method, path, operation, objects)
    none = asked(api, method, path, operation, MISSING)
    assert there == none
    if operation["operationId"] == "stop_worker":
        assert there[0] == (403 if token == LIMITED else 404), there
    if "topic" not in path and "worker" not in path and operation["operationId"] not in ("put_schedule", "set_tenant"):
        # Webhooks, keys and quotas are for tokens that permit all topics.
        assert there[0] == (403 if token == LIMITED and re.search("webhook|key_id|session_id|tenant", path) else 404), (
            there
        )


def _held(one: dict[str, str]) -> list[dict[str, object]]:
    return [{"id": one["job_id"], "epoch": 1025}]


def _done(one: dict[str, str]) -> dict[str, object]:
    return {"worker_id": "w", "outcomes": [{"id": one["job_id"], "epoch": 1025, "completed": {"result": 1}}]}


Named: TypeAlias = "dict[str, str]"
REFER: dict[str, list[Callable[[Named], dict[str, Any]]]] = {
    "submit_job": [
        lambda one: {"topic": "mail", "depends_on": [one["job_id"]]},
        lambda one: {"topic": "mail", "batch": one["batch_id"]},
    ],
    "submit_jobs": [
        lambda one: {"jobs": [{"topic": "mail", "depends_on": [one["job_id"]]}]},
        lambda one: {"jobs": [{"topic": "mail", "batch": one["batch_id"]}]},
    ],
    "cancel_jobs": [lambda one: {"ids": [one["job_id"]]}],
    "redrive_jobs": [lambda one: {"ids": [one["job_id"]]}],
    "discard_jobs": [lambda one: {"ids": [one["job_id"]]}],
    "reprioritise_jobs": [lambda one: {"ids": [one["job_id"]], "priority": 5}],
    "move_jobs": [lambda one: {"ids": [one["job_id"]], "topic": "mail"}],
    "extend_leases": [lambda one: {"worker_id": "w", "jobs": _held(one)}],
    "report_outcomes": [_done],
    "find_ids": [
        lambda one: {"prefix": one["job_id"][:28], "kind": "job"},
        lambda one: {"prefix": one["batch_id"][:28], "kind": "batch"},
        lambda one: {"prefix": one["operation_id"][:28], "kind": "bulk"},
    ],
    "list_jobs": [lambda one: {"filter": f"id:{one['job_id']}"}],
    "count_jobs": [lambda one: {"filter": f"batch:{one['batch_id']}"}],
    "get_stats": [lambda one: {"topic": one["topic"]}],
    "list_failing": [lambda one: {"topic": one["topic"]}],
    "pause": [lambda one: {"target": {"topic": one["topic"]}}],
    "resume": [lambda one: {"target": {"topic": one["topic"]}}],
}
"""By operation: bodies, or queries of a GET, that name an object."""
LISTS = {
    *("list_audit", "list_batches", "list_bulk", "list_jobs", "list_schedules", "get_status", "list_topics"),
    *("list_webhooks", "list_workers", "list_dead_groups", "list_keys", "get_own_tenant"),
    "list_sessions",
}
NAME_NONE = {
    "health_details": "of the instance",
    "health_live": "of the instance",
    "health_ready": "of the instance",
    "count_jobs": "a number; above",
    "follow_events": "tests/integration/test_events.py, and of gRPC: tests/e2e/test_permissions.py",
    "claim_jobs": "jobs of topics of the own tenant: a topic of the same name is another topic",
    "declare_topics": "topics by name, as above",
    "open_batch": "creates",
    "start_bulk": "a filter over the own tenant",
    "preview_bulk": "a filter over the own tenant",
    "create_key": "creates; another tenant is refused (tests/integration/test_keys.py)",
    "create_webhook": "creates",
    "preview_occurrences": "a calculation",
    "set_retention": "of all tenants: the scope system",
    "get_system": "of all tenants: the scope system",
    "run_retention": "of all tenants: the scope system",
    "list_tenants": "of all tenants: the scope system",
    "get_tenant_defaults": "of all tenants: the scope system",
    "set_tenant_defaults": "of all tenants: the scope system",
}
"""Operations that name no object of a tenant, and why."""


def test_every_route_has_a_case_or_a_reason_to_have_none() -> None:
    """A new route without one fails here."""
    all_of_them = {one["operationId"] for found in DOCUMENT["paths"].values() for one in found.values()}
    in_paths = {operation["operationId"] for _, _, operation in operations()}
    assert all_of_them == in_paths | set(REFER) | LISTS | set(NAME_NONE)


def _where(operation_id: str) -> tuple[str, str]:
    ((method, path),) = (
        (method, path)
        for path, found in DOCUMENT["paths"].items()
        for method, one in found.items()
        if one["operationId"] == operation_id
    )
    return method, path


@pytest.mark.req("O28")
@pytest.mark.parametrize("operation_id", sorted(REFER))
def test_an_object_of_others_that_a_body_or_a_query_names_looks_like_one_that_does_not_exist(
    as_: Client, objects: dict[str, str], operation_id: str
) -> None:
    method, path = _where(operation_id)
    for token in (OTHER, LIMITED):
        for named in REFER[operation_id]:
            answers = []
            for one in (objects, MISSING):
                values = named(one)
                sent = {"params": values} if method == "get" else {"json": values}
                answer = as_(token).request(method, path, **sent)  # type: ignore[arg-type]
                text, asked_for = answer.text, json.dumps(values)
                for name in one.values():
                    if name[:28] in asked_for:
                        text = text.replace(name, "?").replace(name[:28], "?")
                assert "f81d4fae" not in text
                assert not any(objects[name] in text for name in IDS)
                text = re.sub(r'"(request_id|[a-z]+_us)":("[^"]*"|\d+),?', "", text)
                answers.append((answer.status_code, re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)))
            assert answers[0] == answers[1], (token, values)


@pytest.mark.req("O28")
@pytest.mark.parametrize("operation_id", sorted(LISTS))
def test_a_list_shows_nothing_of_another_tenant(as_: Client, objects: dict[str, str], operation_id: str) -> None:
    _, path = _where(operation_id)
    answer = as_(THIRD_ADMIN).get(path)  # it has asked for nothing by name
    assert answer.status_code == 200, answer.text
    assert not any(one in answer.text for one in (SECRET, "f81d4fae", *(objects[name] for name in IDS)))
    mine = as_(OWN_ADMIN).get(path).text
    assert operation_id in ("list_dead_groups", "list_workers") or any(
        one in mine for one in (SECRET, "f81d4fae", '"own"')
    ), mine


IDS = ("job_id", "batch_id", "operation_id", "webhook_id", "delivery_id", "key_id", "session_id")


def test_an_object_of_others_costs_as_many_statements_as_one_that_does_not_exist(
    as_: Client, objects: dict[str, str]
) -> None:
    """How long an answer takes must not tell that it exists. Counted: uses of the connections that look it up."""
    lanes = ("read", "admin", "list", "locked")

    def uses() -> list[int]:
        text = as_(SYSTEM).get("/metrics").text
        counted = dict.fromkeys(lanes, 0)
        for lane, count in re.findall(r'headgate_database_seconds_count{[^}]*lane="(\w+)"[^}]*} (\d+)', text):
            if lane in counted:
                counted[lane] += int(count)
        return list(counted.values())

    compared = 0
    for method, path, operation in operations():
        if operation["operationId"] in ("put_schedule", "quiet_worker", "resume_worker", "set_tenant"):
            continue  # they create: what they do is the same by their answers
        api = as_(OTHER_ADMIN if "key_id" in path or "session_id" in path else OTHER)
        for named in (objects, MISSING):  # names are made on first use
            asked(api, method, path, operation, named)
        spent = []
        for named in (objects, MISSING):
            before = uses()
            asked(api, method, path, operation, named)
            spent.append([after - one for after, one in zip(uses(), before, strict=True)])
        assert spent[0] == spent[1], operation["operationId"]
        compared += sum(spent[0]) > 0
    assert compared > 20, "else this would prove nothing"
