"""The authorisation table against a real server: every method, with tokens of other scopes, tenants and topics.

What belongs to another tenant or another topic must look exactly like what does not exist. So each method is asked
about an object of someone else and about one that does not exist. The two answers must differ in the name only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from headgate.control.permissions import RULES, TenantRule, TopicRule
from headgate.domain.identity import Scope
from headgate.wire import admin_pb2 as admin
from headgate.wire import batches_pb2 as batches
from headgate.wire import bulk_pb2 as bulk
from headgate.wire import events_pb2 as events
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import keys_pb2 as keys
from headgate.wire import producer_pb2 as producer
from headgate.wire import schedules_pb2 as schedules
from headgate.wire import stats_pb2 as stats
from headgate.wire import topics_pb2 as topics
from headgate.wire import webhooks_pb2 as webhooks
from headgate.wire import worker_pb2 as worker
from tests.support.dashboard import Visit
from tests.support.database import Server
from tests.support.foreign_objects import (
    ADMIN,
    LIMITED,
    NOBODYS,
    OTHER,
    OTHER_ADMIN,
    OWNER,
    SECRETS,
    SYSTEM,
    TOKENS,
    TOPIC,
    UNUSED,
    WORKER,
    Requests,
    World,
    cron,
    filled,
    objects_of,
    whole_tenant_objects,
)
from tests.support.raw_calls import ask, error_codes
from tests.support.server import ServerProcess
from tests.support.wire import Wire, new_id, served


@pytest.fixture(scope="module")
def the_server(
    postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, World]]:
    folder = tmp_path_factory.mktemp("permissions")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    with served(postgres, template, folder, "--tokens", str(tokens), "--http-port", "0", dev=False) as (server, _):
        browser = Visit(server.http_url)
        browser.http.headers["user-agent"] = "secret-f81d4fae"
        browser.sign_in(OWNER)
        yield server, asyncio.run(filled(server.address))
        assert browser.get("/ui").status_code == 200, "no one has ended the session of another tenant"
        browser.close()


@pytest.fixture
def server(the_server: tuple[ServerProcess, World]) -> ServerProcess:
    return the_server[0]


@pytest.fixture
def world(the_server: tuple[ServerProcess, World]) -> World:
    return the_server[1]


@pytest.fixture
async def as_(server: ServerProcess) -> AsyncIterator[Callable[[str], Wire]]:
    """A connection under a token."""
    async with AsyncExitStack() as stack:
        known: dict[str, Wire] = {}

        def connected(token: str) -> Wire:
            if token not in known:
                known[token] = Wire(server.address, token=token)
                stack.push_async_callback(known[token].channel.close)
            return known[token]

        yield connected


As: TypeAlias = Callable[[str], Wire]


# ---------------------------------------------------------------------- scopes


@pytest.mark.parametrize("path", sorted(RULES))
async def test_a_method_is_open_to_its_scopes_and_to_no_others(path: str, as_: As) -> None:
    rule = RULES[path]
    for token, entry in TOKENS.items():
        scopes = {Scope(one) for one in entry["scopes"]}  # type: ignore[attr-defined]
        allowed = not rule.scopes or any(
            one in scopes or (Scope.ADMIN in scopes and one is not Scope.SYSTEM) for one in rule.scopes
        )
        if "topics" in entry and TopicRule.WHOLE_TENANT in rule.topics:
            allowed = False
        answer = await ask(as_(token), path, within=0.3 if path.endswith("/Watch") else 20)
        assert (answer.code == "permission_denied") == (not allowed), (token, answer)


async def test_what_reaches_all_tenants_is_for_system_alone(as_: As) -> None:
    everything = admin.Target(everything=True)
    for path, request in (
        ("AdminService/Pause", admin.PauseRequest(target=everything, until_us=1)),
        ("AdminService/Resume", admin.ResumeRequest(target=everything)),
        ("AdminService/SetRetention", admin.SetRetentionRequest()),
        ("AdminService/RunRetention", admin.RunRetentionRequest()),
    ):
        for token in (OWNER, ADMIN):
            answer = await ask(as_(token), f"/headgate.v1.{path}", request)
            assert (answer.code, '"system"' in answer.details) == ("permission_denied", True), (path, answer)
        answer = await ask(as_(SYSTEM), f"/headgate.v1.{path}", request)
        assert answer.code != "permission_denied", answer
    # What a tenant's operator may do, system may not: it has no tenant.
    for target in (admin.Target(tenant=True), admin.Target(topic="mail")):
        answer = await ask(as_(SYSTEM), "/headgate.v1.AdminService/Pause", admin.PauseRequest(target=target))
        assert (answer.code, '"operate"' in answer.details) == ("permission_denied", True), answer


async def test_system_pauses_and_resumes_everything_and_sees_what_concerns_all(as_: As) -> None:
    def call(name: str, request: Message) -> Any:
        return ask(as_(SYSTEM), f"/headgate.v1.AdminService/{name}", request)

    everything = admin.Target(everything=True)
    assert (await call("Pause", admin.PauseRequest(target=everything))).status is grpc.StatusCode.OK
    try:
        status = admin.StatusResponse.FromString((await call("Status", admin.StatusRequest())).messages[0])
        assert [(one.target.everything, one.paused) for one in status.pauses] == [(True, True)]
        assert status.instances
        assert not status.topics
    finally:
        resumed = await call("Resume", admin.ResumeRequest(target=everything))
    assert admin.ResumeResponse.FromString(resumed.messages[0]).changed
    entries = admin.ListAuditResponse.FromString((await call("ListAudit", admin.ListAuditRequest())).messages[0])
    newest = [(one.verb, one.everything, one.tenant) for one in entries.entries][:2]
    assert newest == [("resume", True, ""), ("pause", True, "")]
    assert ("pause", "own") in {(one.verb, one.tenant) for one in entries.entries}, "and those of all tenants"
    assert entries.all_tenants


# ---------------------------------------------------------------------- objects


@pytest.mark.parametrize("path", sorted(path for path, rule in RULES.items() if TopicRule.OBJECT in rule.topics))
async def test_what_belongs_to_others_looks_like_what_does_not_exist(path: str, world: World, as_: As) -> None:
    probes = objects_of(world)[path]
    for token in (OTHER, LIMITED):
        for there, nowhere, request in probes:
            foreign = (await ask(as_(token), path, request(there))).without(there)
            unknown = (await ask(as_(token), path, request(nowhere))).without(nowhere)
            assert foreign == unknown, token
            assert not any(secret in repr(foreign) for secret in SECRETS), foreign
    await _unharmed(as_(OWNER), world)


NAME_NO_OBJECT = {
    "AdminService/ListAudit": "a list, below",
    "AdminService/QuietWorker": "a name within the own tenant, connected or not",
    "AdminService/ResumeWorker": "a name within the own tenant, connected or not",
    "KeyService/CreateKey": "creates; another tenant is refused (tests/integration/test_keys.py)",
    "KeyService/ListKeys": "a list, below",
    "KeyService/ListSessions": "a list, below",
    "WebhookService/Create": "creates",
    "WebhookService/List": "a list, below",
}
WHOLE = sorted(
    path
    for path, rule in RULES.items()
    if rule.topics == (TopicRule.WHOLE_TENANT,)
    and rule.tenant is not TenantRule.ALL
    and path.removeprefix("/headgate.v1.") not in NAME_NO_OBJECT
)


@pytest.mark.parametrize("path", WHOLE)
async def test_what_belongs_to_another_tenant_looks_like_what_does_not_exist(path: str, world: World, as_: As) -> None:
    token = OTHER_ADMIN if "KeyService" in path else OTHER
    for there, nowhere, request in whole_tenant_objects(world)[path]:
        foreign = (await ask(as_(token), path, request(there))).without(there)
        unknown = (await ask(as_(token), path, request(nowhere))).without(nowhere)
        assert foreign == unknown
        assert foreign.code == "not_found"
        assert not any(secret in repr(foreign) for secret in SECRETS if secret != there), foreign
    await _unharmed(as_(OWNER), world)


# ---------------------------------------------------------------------- topics by name


NAMED: Requests = {
    "ProducerService/Submit": lambda topic: producer.SubmitRequest(job=producer.NewJob(topic=topic)),
    "ProducerService/SubmitBatch": lambda topic: producer.SubmitBatchRequest(jobs=[producer.NewJob(topic=topic)]),
    "ProducerService/Produce": lambda topic: producer.ProducerFrame(seq=1, jobs=[producer.NewJob(topic=topic)]),
    "WorkerService/Work": lambda topic: worker.WorkerFrame(ready=worker.Ready(topics=[topic], count=1)),
    "WorkerService/StreamJobs": lambda topic: worker.StreamJobsRequest(worker_id="w", topics=[topic], max_in_flight=1),
    "WorkerService/Claim": lambda topic: worker.ClaimRequest(worker_id="w", topics=[topic]),
    "BatchService/OpenBatch": lambda topic: batches.OpenBatchRequest(
        id=new_id(), on_done=producer.NewJob(id=new_id(), topic=topic)
    ),
    "AdminService/Pause": lambda topic: admin.PauseRequest(target=admin.Target(topic=topic)),
    "AdminService/Resume": lambda topic: admin.ResumeRequest(target=admin.Target(topic=topic)),
    "AdminService/MoveJobs": lambda topic: admin.MoveJobsRequest(ids=[NOBODYS], topic=topic),
    "BulkService/ListJobs": lambda topic: bulk.ListJobsRequest(filter=f"topic:{topic}"),
    "BulkService/CountJobs": lambda topic: bulk.CountJobsRequest(filter=f"topic:{topic}"),
    "BulkService/ListDeadGroups": lambda topic: bulk.ListDeadGroupsRequest(topic=topic),
    "BulkService/PreviewBulk": lambda topic: bulk.BulkPlan(verb="cancel", filter=f"topic:{topic}", reason="r"),
    "BulkService/StartBulk": lambda topic: bulk.StartBulkRequest(
        id=new_id(), plan=bulk.BulkPlan(verb="cancel", filter=f"topic:{topic}", reason="r")
    ),
    "ScheduleService/Put": lambda topic: schedules.PutScheduleRequest(
        name="mine", spec=schedules.ScheduleSpec(topic=topic, timing=cron())
    ),
    "EventService/ReadEvents": lambda topic: events.ReadEventsRequest(topics=[topic]),
    "StatsService/GetStats": lambda topic: stats.GetStatsRequest(topic=topic),
    "StatsService/ListFailing": lambda topic: stats.ListFailingRequest(topic=topic),
    "TopicService/GetTopic": lambda topic: topics.GetTopicRequest(name=topic),
    "TopicService/SetTopic": lambda topic: topics.SetTopicRequest(name=topic),
    "TopicService/ApplyTopic": lambda topic: topics.ApplyTopicRequest(name=topic),
    "TopicService/ListTopicVersions": lambda topic: topics.ListTopicVersionsRequest(name=topic),
    "TopicService/ReleaseTopic": lambda topic: topics.ReleaseTopicRequest(name=topic),
    "TopicService/DeclareTopics": lambda topic: topics.DeclareTopicsRequest(
        source="app", worker_id="w", topics=[topics.TopicDeclaration(name=topic)]
    ),
}


@pytest.mark.parametrize("path", sorted(path for path, rule in RULES.items() if TopicRule.NAMED in rule.topics))
async def test_a_topic_that_the_token_does_not_permit_is_refused_whether_it_exists_or_not(
    path: str, world: World, as_: As
) -> None:
    request = NAMED[path.removeprefix("/headgate.v1.")]
    there = (await ask(as_(LIMITED), path, request(TOPIC))).without(TOPIC)
    nowhere = (await ask(as_(LIMITED), path, request(UNUSED))).without(UNUSED)
    assert there == nowhere
    assert "permission_denied" in (there.code, *error_codes(path, there)), there
    await _unharmed(as_(OWNER), world)


# ---------------------------------------------------------------------- lists


LISTS: dict[str, Message] = {
    "KeyService/ListKeys": keys.ListKeysRequest(),
    "KeyService/ListSessions": keys.ListSessionsRequest(),
    "WebhookService/List": webhooks.ListWebhooksRequest(),
    "AdminService/Status": admin.StatusRequest(),
    "AdminService/ListWorkers": admin.ListWorkersRequest(running=True),
    "BatchService/ListBatches": batches.ListBatchesRequest(limit=1_000),
    "AdminService/ListAudit": admin.ListAuditRequest(limit=500),
    "BulkService/ListJobs": bulk.ListJobsRequest(limit=1_000),
    "BulkService/CountJobs": bulk.CountJobsRequest(filter="state:dead"),
    "BulkService/ListDeadGroups": bulk.ListDeadGroupsRequest(),
    "BulkService/PreviewBulk": bulk.BulkPlan(verb="discard", filter="state:dead", reason="r"),
    "BulkService/ListBulk": bulk.ListBulkRequest(limit=1_000),
    "EventService/ReadEvents": events.ReadEventsRequest(last_event_id="1.0.1:1:", kinds=["job.failed"]),
    "ScheduleService/List": schedules.ListSchedulesRequest(limit=1_000),
    "StatsService/ListFailing": stats.ListFailingRequest(),
    "TopicService/ListTopics": topics.ListTopicsRequest(limit=1_000),
}
COUNTS = {"BulkService/CountJobs": bulk.CountJobsResponse}


@pytest.mark.parametrize("name", sorted(LISTS))
async def test_lists_and_counts_show_nothing_of_others(name: str, as_: As) -> None:
    async with as_(OWNER).worker(WORKER) as session:
        await session.ready(1, TOPIC)
        await session.beat()
        await _shows_nothing(name, as_)


async def _shows_nothing(name: str, as_: As) -> None:
    path, request = f"/headgate.v1.{name}", LISTS[name]
    own, other = (ADMIN, OTHER_ADMIN) if "KeyService" in name else (OWNER, OTHER)
    owners = await ask(as_(own), path, request)
    assert owners.status is grpc.StatusCode.OK, owners
    if name in COUNTS:
        assert COUNTS[name].FromString(owners.messages[0]).total == 1
    else:
        assert any(secret.encode() in owners.messages[0] for secret in SECRETS), "else this would prove nothing"
    for token in (other, LIMITED):
        answer = await ask(as_(token), path, request)
        if token == LIMITED and TopicRule.WHOLE_TENANT in RULES[path].topics:
            assert answer.code == "permission_denied"
            continue
        assert answer.status is grpc.StatusCode.OK, answer
        assert not any(secret in repr(answer) for secret in SECRETS), (token, answer)
        if name in COUNTS:
            assert COUNTS[name].FromString(answer.messages[0]).total == 0


def test_every_method_of_the_table_is_asked_here() -> None:
    """A new method needs a case above, or a reason to have none."""
    without = {path for path, rule in RULES.items() if rule.tenant in (TenantRule.ALL, TenantRule.NONE)}
    world = World(**{name: b"" for name in World.__dataclass_fields__ if name != "epoch"}, epoch=0)  # type: ignore[arg-type]
    asked = {*objects_of(world), *whole_tenant_objects(world)}
    asked |= {f"/headgate.v1.{name}" for name in (*NAMED, *LISTS, *NAME_NO_OBJECT)}
    assert set(RULES) - without == asked


# ---------------------------------------------------------------------- small parts


async def _unharmed(wire: Wire, world: World) -> None:
    """The job that runs runs on under its lease, and the others are as they were."""
    assert (await wire.job(world.running)).state == jobs.STATE_RUNNING
    assert (await wire.job(world.pending)).state == jobs.STATE_SCHEDULED
    dead = await wire.job(world.dead)
    assert (dead.state, dead.topic, dead.priority) == (jobs.STATE_DEAD, TOPIC, 0)
