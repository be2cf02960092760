"""The command line, the REST API and the dashboard can do the same: each change has a command, a route and a page.

Commands are compared by the calls that they make, not by a list of their names: each one is run, and its calls are
recorded and answered with empty messages.
"""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from litestar.handlers import HTTPRouteHandler

from headgate.api.http.app import ROUTES
from headgate.api.http.auth import RULE
from headgate.cli import app, connection, main
from headgate.sdk.connection import Connection
from headgate.web.pages import all_routes
from headgate.wire import bulk_pb2
from tests.unit.test_cli_commands import LOCAL, commands

ID = "0190a3b2-7c4d-7abc-8def-0123456789ab"
LINES = f"""
audit; status; stats; events --limit 1; workers list; workers get w-1; workers quiet w-1; workers resume w-1
workers stop w-1 --yes
export; import {{export}}
batch list; batch get {ID}; batch open; batch seal {ID}
bulk start cancel --filter topic:a --yes --detach; bulk list; bulk get {ID}; bulk watch {ID}; bulk cancel {ID}
dead list; dead redrive mail --yes --detach; dead discard mail --yes --detach
job list; job list --count; job get {ID}; job events {ID}; job logs {ID}; job watch {ID}
job cancel {ID}; job redrive {ID}; job discard {ID}; job reprioritise {ID} --priority 5; job move {ID} --to other
key create a --scopes read; key list; key rotate hg_7k3mz9ab; key revoke hg_7k3mz9ab; session list
session revoke abcdefghij; system
pause mail; resume mail; retention show; retention set --dead 30d; retention run
schedule list; schedule get nightly; schedule put nightly mail --every 1h; schedule pause nightly
schedule resume nightly; schedule run nightly; schedule next nightly; schedule delete nightly
submit mail {{}}; submit mail --file {{file}}; submit mail {{}} --wait 1s
tenant list; tenant show; tenant set acme --max-backlog 5; tenant show --defaults; tenant set --defaults --max-topics 9
topic list; topic get mail; topic set mail --max-running 5; topic release mail; topic apply -f {{policy}}
topic export mail; topic history mail; topic drain mail --yes --detach; topic move mail --to other --yes --detach
webhook create https://a.example job.dead; webhook list; webhook get {ID}; webhook update {ID} --enable
webhook delete {ID}; webhook rotate-secret {ID}; webhook deliveries {ID}; webhook deliveries {ID} {ID}
webhook resend {ID} {ID}; webhook test {ID}
"""
OTHERWISE = {
    ("bench",): "submits and runs jobs of its own",
    ("top",): "a view of the calls of the other commands: tests/e2e/test_top.py",
    ("schedule", "sync"): "loads an application; `schedule put` and `schedule delete` are its calls",
    ("worker",): "loads an application, and is a worker",
    ("profile", "login"): "calls the server only to check the token: `status`",
}
"""Commands that are not run here."""
ONLY_REST = {
    "ProducerService/Submit": "`headgate submit` sends a frame of ProducerService/Produce",
    "ProducerService/SubmitBatch": "`headgate submit --file` sends frames of ProducerService/Produce",
    "WorkerService/Claim": "a call of workers; the command is `headgate worker`",
    "WorkerService/Heartbeat": "as above",
    "WorkerService/ReportOutcome": "as above",
    "TopicService/DeclareTopics": "workers store what their handlers declare when they start",
}
"""Routes that change something without a command that makes the same call, and what there is instead."""
ONLY_COMMANDS = {"ProducerService/Produce": "a stream; POST /v1/jobs and POST /v1/jobs/batch"}


NOT_ON_PAGES = {
    **{call: why for call, why in ONLY_REST.items() if call != "ProducerService/Submit"},  # there is a form
    "AdminService/RunRetention": "servers do it by themselves",
    "AdminService/SetRetention": "concerns all tenants; pages are for one",
    "BatchService/OpenBatch": "programs open batches; a page seals one that was left open",
    "BulkService/PreviewBulk": "a page of its own, by GET",
    "TenantService/SetTenant": "concerns all tenants; pages are for one",
    "TenantService/SetTenantDefaults": "as above",
    "TopicService/ReleaseTopic": "the form of a topic applies its policy as a whole: TopicService/ApplyTopic",
    "TopicService/SetTopic": "as above",
}
"""Changes without an action of the dashboard, and why."""


def remote_commands() -> set[tuple[str, ...]]:
    return {path for path, _ in commands(app)} - LOCAL


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The calls of each command line."""
    folder = tmp_path_factory.mktemp("parity")
    (folder / "policy.toml").write_text("[topics.mail]\nmax_running = 5\n")
    (folder / "jobs.ndjson").write_text("{}\n{}\n")
    (folder / "export.ndjson").write_text('{"topic":"mail"}\n')
    lines = LINES.replace("{export}", str(folder / "export.ndjson"))
    lines = lines.replace("{file}", str(folder / "jobs.ndjson")).replace("{policy}", str(folder / "policy.toml"))
    made: set[str] = set()

    async def call(_self: Connection, method: Any, request: Any, **_options: Any) -> Any:
        assert isinstance(request, method.request)
        if method.path in made:
            raise RuntimeError("asks again and again, since the answer is empty")
        made.add(method.path)
        if method.response is bulk_pb2.BulkPreview:
            return bulk_pb2.BulkPreview(total=1, eligible=1)  # else there is nothing to start
        return method.response()

    async def put(_self: Connection, *_job: Any) -> Any:
        made.add("ProducerService/Produce")
        raise RuntimeError("there is no server")

    def start_get(_self: Connection, *_job: Any, **_options: Any) -> Any:
        made.add("ProducerService/GetJob")
        raise RuntimeError("there is no server")

    found: dict[str, set[str]] = {}
    known = {path[0] for path, _ in commands(app)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "check_listening", lambda _addresses: None)
        patch.setattr(Connection, "call", call)
        patch.setattr(Connection, "put", put)
        patch.setattr(Connection, "start_get", start_get)
        for line in (part.strip() for row in lines.splitlines() for part in row.split(";")):
            if line.partition(" ")[0] in known:
                made.clear()
                main(shlex.split(line))  # what it makes of the empty answer is not looked at
                found[line] = set(made)
    return found


def rest(*, changing: bool) -> set[str]:
    """The gRPC methods of routes: those that change something, or all."""
    routes = [one for one in ROUTES if isinstance(one, HTTPRouteHandler) and RULE in one.opt]
    return {
        one.opt[RULE].removeprefix("/headgate.v1.") for one in routes if not changing or "GET" not in one.http_methods
    }


def of_dashboard() -> set[str]:
    """The gRPC methods of the dashboard's actions."""
    routes = [one for one in all_routes() if isinstance(one, HTTPRouteHandler) and RULE in one.opt]
    return {one.opt[RULE].removeprefix("/headgate.v1.") for one in routes if "POST" in one.http_methods}


def test_every_command_that_calls_a_server_is_run_here_or_has_a_reason(called: dict[str, set[str]]) -> None:
    run = {path for path in remote_commands() for line in called if (*shlex.split(line)[: len(path)],) == path}
    assert remote_commands() - run == OTHERWISE.keys() & remote_commands()
    assert [line for line, calls in called.items() if not calls] == []


def test_every_change_by_rest_has_a_command(called: dict[str, set[str]]) -> None:
    commanded = set().union(*called.values())
    assert rest(changing=True) - commanded == ONLY_REST.keys()


def test_every_action_of_the_dashboard_has_a_command_and_a_route(called: dict[str, set[str]]) -> None:
    commanded = set().union(*called.values())
    assert of_dashboard() - commanded - ONLY_REST.keys() == set()
    assert of_dashboard() - rest(changing=False) == set()


def test_every_change_has_an_action_of_the_dashboard_or_a_reason_to_have_none() -> None:
    assert rest(changing=True) - of_dashboard() == NOT_ON_PAGES.keys()


def test_every_call_of_a_command_has_a_route(called: dict[str, set[str]]) -> None:
    commanded = set().union(*called.values())
    assert commanded - rest(changing=False) == ONLY_COMMANDS.keys()
