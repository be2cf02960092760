"""The authorisation table against a real server: every method, with tokens of other scopes, tenants and topics.

What belongs to another tenant or another topic must look exactly like what does not exist. So each method is asked
about an object of someone else and about one that does not exist. The two answers must differ in the name only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from uuid import UUID

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from headgate.control.permissions import RULES, TenantRule, TopicRule
from headgate.domain.identity import Scope
from headgate.wire import admin_pb2 as admin
from headgate.wire import batches_pb2 as batches
from headgate.wire import bulk_pb2 as bulk
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import producer_pb2 as producer
from headgate.wire import schedules_pb2 as schedules
from headgate.wire import topics_pb2 as topics
from headgate.wire import worker_pb2 as worker
from tests.support.database import Server
from tests.support.server import ServerProcess
from tests.support.wire import Wire, completed, failed, new_id, served

OWNER, OTHER, LIMITED, SYSTEM, ADMIN = (f"token-{name}-xxxxxxxx" for name in ("own", "oth", "lim", "sys", "adm"))
ALL = ["submit", "work", "read", "operate"]
TOPIC, UNUSED = "pay-f81d4fae", "pay-00000000"
SCHEDULE, NO_SCHEDULE = "payday-f81d4fae", "payday-00000000"
WORKER = "payer-f81d4fae"
SECRETS = (TOPIC, SCHEDULE, WORKER, "secret-f81d4fae")
TOKENS: dict[str, dict[str, object]] = {
    OWNER: {"tenant": "own", "name": "owner", "scopes": ALL},
    OTHER: {"tenant": "other", "name": "other", "scopes": ALL},
    LIMITED: {"tenant": "own", "name": "limited", "scopes": ALL, "topics": ["mail"]},
    ADMIN: {"tenant": "own", "name": "admin", "scopes": ["admin"]},
    SYSTEM: {"name": "system", "scopes": ["system"]},
    **{f"token-with-{scope}-only": {"tenant": "own", "name": f"only {scope}", "scopes": [scope]} for scope in ALL},
}
HELLO = {
    "/headgate.v1.WorkerService/Work": worker.WorkerFrame(hello=worker.Hello(worker_id="asks")),
    "/headgate.v1.ProducerService/Produce": producer.ProducerFrame(hello=producer.ProducerHello()),
}
NEW_JOB = new_id()  # none is made: it would hang on what its maker may not see
NOBODYS = UUID("01890000-0000-7000-8000-000000000000").bytes
Requests: TypeAlias = "dict[str, Callable[[Any], Message]]"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How a call ended, and what it said before that."""

    status: grpc.StatusCode
    code: str
    details: str
    messages: tuple[bytes, ...]

    def without(self, *names: str | bytes) -> Answer:
        """The same with these names and ids blotted out: ids as bytes in messages, and as text."""
        details, messages = self.details, list(self.messages)
        for name in names:
            raw = name if isinstance(name, bytes) else name.encode()
            text = str(UUID(bytes=name)) if isinstance(name, bytes) else name
            details = details.replace(text, "?")
            messages = [one.replace(raw, b"?" * len(raw)).replace(text.encode(), b"?" * len(text)) for one in messages]
        return replace(self, details=details, messages=tuple(messages))


@dataclass(frozen=True, kw_only=True)
class World:
    """What `own` has on a topic that `LIMITED` may not see."""

    pending: bytes
    running: bytes
    epoch: int
    dead: bytes
    batch: bytes
    plain_batch: bytes
    operation: bytes


@pytest.fixture(scope="module")
def the_server(
    postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, World]]:
    folder = tmp_path_factory.mktemp("permissions")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    with served(postgres, template, folder, "--tokens", str(tokens), dev=False) as (server, _):
        yield server, asyncio.run(_filled(server.address))


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
    assert {one.everything for one in entries.entries} == {True}
    assert [one.verb for one in entries.entries][:2] == ["resume", "pause"]


# ---------------------------------------------------------------------- objects


def _objects(world: World) -> dict[str, list[tuple[Any, Any, Callable[[Any], Message]]]]:
    """By method: what `own` has, what does not exist, and how to ask about one of them."""

    def one_of(there: Any, ask: Callable[[Any], Message], nowhere: Any = NOBODYS) -> tuple[Any, Any, Any]:
        return there, nowhere, ask

    def held(one: bytes) -> worker.Held:
        return worker.Held(ids=[one], epochs=[world.epoch])

    def done(one: bytes) -> jobs.Outcome:
        return jobs.Outcome(id=one, epoch=world.epoch, completed=jobs.Completed(result=b"forged"))

    def new(**parts: Any) -> producer.NewJob:
        return producer.NewJob(id=NEW_JOB, topic="mail", **parts)

    named = (SCHEDULE, NO_SCHEDULE)
    on = "/headgate.v1."
    verbs = {
        "CancelJobs": lambda one: admin.CancelJobsRequest(ids=[one]),
        "RedriveJobs": lambda one: admin.RedriveJobsRequest(ids=[one]),
        "DiscardJobs": lambda one: admin.DiscardJobsRequest(ids=[one]),
        "ReprioritiseJobs": lambda one: admin.ReprioritiseJobsRequest(ids=[one], priority=5),
        "MoveJobs": lambda one: admin.MoveJobsRequest(ids=[one], topic="mail"),
    }
    on_schedules = {
        "Get": lambda one: schedules.GetScheduleRequest(name=one),
        "Delete": lambda one: schedules.DeleteScheduleRequest(name=one),
        "Pause": lambda one: schedules.PauseScheduleRequest(name=one),
        "Resume": lambda one: schedules.ResumeScheduleRequest(name=one),
        "Trigger": lambda one: schedules.TriggerScheduleRequest(name=one, request_id=new_id()),
        "Next": lambda one: schedules.NextRequest(name=one),
        "Jobs": lambda one: schedules.ScheduleJobsRequest(name=one),
    }
    return {
        f"{on}ProducerService/GetJob": [one_of(world.dead, lambda one: producer.GetJobRequest(id=one))],
        f"{on}ProducerService/WaitResult": [one_of(world.dead, lambda one: producer.WaitResultRequest(id=one))],
        f"{on}ProducerService/Submit": [
            one_of(world.pending, lambda one: producer.SubmitRequest(job=new(depends_on=[one]))),
            one_of(world.batch, lambda one: producer.SubmitRequest(job=new(batch=one))),
        ],
        f"{on}ProducerService/SubmitBatch": [
            one_of(world.pending, lambda one: producer.SubmitBatchRequest(jobs=[new(depends_on=[one])])),
            one_of(world.batch, lambda one: producer.SubmitBatchRequest(jobs=[new(batch=one)])),
        ],
        f"{on}ProducerService/Produce": [
            one_of(world.pending, lambda one: producer.ProducerFrame(seq=1, jobs=[new(depends_on=[one])])),
            one_of(world.batch, lambda one: producer.ProducerFrame(seq=1, jobs=[new(batch=one)])),
        ],
        f"{on}WorkerService/Heartbeat": [
            one_of(world.running, lambda one: worker.HeartbeatRequest(worker_id=WORKER, held=held(one)))
        ],
        f"{on}WorkerService/ReportOutcome": [
            one_of(world.running, lambda one: worker.ReportOutcomeRequest(outcomes=[done(one)]))
        ],
        f"{on}WorkerService/Work": [
            one_of(
                world.running,
                lambda one: worker.WorkerFrame(outcomes=worker.Outcomes(seq=1, ids=[one], epochs=[world.epoch])),
            )
        ],
        f"{on}BatchService/SealBatch": [one_of(world.batch, lambda one: batches.SealBatchRequest(id=one))],
        f"{on}BatchService/GetBatch": [
            one_of(world.batch, lambda one: batches.GetBatchRequest(id=one)),
            one_of(world.plain_batch, lambda one: batches.GetBatchRequest(id=one)),
        ],
        f"{on}BulkService/GetBulk": [one_of(world.operation, lambda one: bulk.GetBulkRequest(id=one))],
        f"{on}BulkService/CancelBulk": [one_of(world.operation, lambda one: bulk.CancelBulkRequest(id=one))],
        **{f"{on}AdminService/{verb}": [one_of(world.dead, ask)] for verb, ask in verbs.items()},
        f"{on}AdminService/FindIds": [
            one_of(there, lambda one, kind=kind: admin.FindIdsRequest(kind=kind, prefix=one.hex()[:28]))
            for there, kind in (
                (world.dead, admin.ID_KIND_JOB),
                (world.running, admin.ID_KIND_JOB),
                (world.batch, admin.ID_KIND_BATCH),
                (world.plain_batch, admin.ID_KIND_BATCH),
                (world.operation, admin.ID_KIND_BULK),
            )
        ],
        **{f"{on}ScheduleService/{verb}": [(*named, ask)] for verb, ask in on_schedules.items()},
        f"{on}ScheduleService/Put": [
            (
                *named,
                lambda one: schedules.PutScheduleRequest(
                    name=one, spec=schedules.ScheduleSpec(topic="mail", timing=_cron()), expected_version=77
                ),
            )
        ],
    }


@pytest.mark.parametrize("path", sorted(path for path, rule in RULES.items() if TopicRule.OBJECT in rule.topics))
async def test_what_belongs_to_others_looks_like_what_does_not_exist(path: str, world: World, as_: As) -> None:
    probes = _objects(world)[path]
    for token in (OTHER, LIMITED):
        for there, nowhere, request in probes:
            foreign = (await ask(as_(token), path, request(there))).without(there)
            unknown = (await ask(as_(token), path, request(nowhere))).without(nowhere)
            assert foreign == unknown, token
            assert not any(secret in repr(foreign) for secret in SECRETS), foreign
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
        name="mine", spec=schedules.ScheduleSpec(topic=topic, timing=_cron())
    ),
    "TopicService/GetTopic": lambda topic: topics.GetTopicRequest(name=topic),
    "TopicService/SetTopic": lambda topic: topics.SetTopicRequest(name=topic),
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
    assert "permission_denied" in (there.code, *_codes(path, there)), there
    await _unharmed(as_(OWNER), world)


# ---------------------------------------------------------------------- lists


LISTS: dict[str, Message] = {
    "AdminService/Status": admin.StatusRequest(),
    "AdminService/ListWorkers": admin.ListWorkersRequest(running=True),
    "BatchService/ListBatches": batches.ListBatchesRequest(limit=1_000),
    "AdminService/ListAudit": admin.ListAuditRequest(limit=500),
    "BulkService/ListJobs": bulk.ListJobsRequest(limit=1_000),
    "BulkService/CountJobs": bulk.CountJobsRequest(filter="state:dead"),
    "BulkService/ListDeadGroups": bulk.ListDeadGroupsRequest(),
    "BulkService/PreviewBulk": bulk.BulkPlan(verb="discard", filter="state:dead", reason="r"),
    "BulkService/ListBulk": bulk.ListBulkRequest(limit=1_000),
    "ScheduleService/List": schedules.ListSchedulesRequest(limit=1_000),
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
    owners = await ask(as_(OWNER), path, request)
    assert owners.status is grpc.StatusCode.OK, owners
    if name in COUNTS:
        assert COUNTS[name].FromString(owners.messages[0]).total == 1
    else:
        assert any(secret.encode() in owners.messages[0] for secret in SECRETS), "else this would prove nothing"
    for token in (OTHER, LIMITED):
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
    whole = {path for path, rule in RULES.items() if rule.topics == (TopicRule.WHOLE_TENANT,)}  # by scope, above
    world = World(**{name: b"" for name in World.__dataclass_fields__ if name != "epoch"}, epoch=0)  # type: ignore[arg-type]
    asked = {*_objects(world), *(f"/headgate.v1.{name}" for name in (*NAMED, *LISTS))}
    assert set(RULES) - without - whole == asked - whole


# ---------------------------------------------------------------------- small parts


async def ask(wire: Wire, path: str, *requests: Message, within: float = 20) -> Answer:
    """Call by bytes, whatever the kind of the method; a stream is left when it has nothing more to say."""
    while True:
        answer = await _ask(wire, path, *requests, within=within)
        if not answer.details.startswith("Internal error from Core"):
            return answer  # else it was refused while we wrote, and grpc.aio has forgotten the status


async def _ask(wire: Wire, path: str, *requests: Message, within: float) -> Answer:
    call: Any = wire.channel.stream_stream(path)(metadata=wire.metadata)
    messages: list[bytes] = []
    frames: Sequence[Message] = requests
    if path in HELLO and requests:
        frames = [HELLO[path], *requests]
    try:
        async with asyncio.timeout(within):
            try:
                for frame in frames:
                    await call.write(frame.SerializeToString())
                await call.done_writing()
            except (asyncio.InvalidStateError, grpc.aio.InternalError):
                pass  # it has ended already, and says how below
            while (message := await call.read()) is not grpc.aio.EOF:
                if not _is_greeting(path, message):
                    messages.append(message)
        status, details = await call.code(), await call.details()
        trailers = await call.trailing_metadata()
    except TimeoutError:
        call.cancel()
        status, details, trailers = grpc.StatusCode.CANCELLED, "by us", ()
    except grpc.aio.AioRpcError as error:
        status, details, trailers = error.code(), error.details(), error.trailing_metadata()
    code = str(dict(trailers or ()).get("headgate-code", ""))
    return Answer(status=status, code=code, details=details or "", messages=tuple(messages))


def _is_greeting(path: str, message: bytes) -> bool:
    if path.endswith("/Work"):
        return worker.ServerFrame.FromString(message).HasField("hello_ack")
    return path.endswith("/Produce") and producer.ProducerReply.FromString(message).HasField("hello_ack")


def _codes(path: str, answer: Answer) -> list[str]:
    """Of errors within an answer."""
    found: list[str] = []
    for message in answer.messages:
        if path.endswith("/SubmitBatch"):
            found += [one.error.code for one in producer.SubmitBatchResponse.FromString(message).receipts]
        elif path.endswith("/Produce"):
            reply = producer.ProducerReply.FromString(message)
            found += [reply.error.code, *(one.error.code for one in reply.exceptions)]
    return found


def _cron() -> schedules.Timing:
    return schedules.Timing(cron=schedules.Cron(expression="0 0 1 1 *"))


async def _unharmed(wire: Wire, world: World) -> None:
    """The job that runs runs on under its lease, and the others are as they were."""
    assert (await wire.job(world.running)).state == jobs.STATE_RUNNING
    assert (await wire.job(world.pending)).state == jobs.STATE_SCHEDULED
    dead = await wire.job(world.dead)
    assert (dead.state, dead.topic, dead.priority) == (jobs.STATE_DEAD, TOPIC, 0)


async def _filled(address: str) -> World:
    async with Wire(address, token=OWNER) as wire:

        async def call(path: str, request: Message, answer: type[Any]) -> Any:
            said = await ask(wire, f"/headgate.v1.{path}", request)
            assert said.status is grpc.StatusCode.OK, said
            return answer.FromString(said.messages[0])

        dead = await wire.submit(TOPIC, b"secret-f81d4fae", max_attempts=1)
        claim = worker.ClaimRequest(worker_id=WORKER, topics=[TOPIC], lease_seconds=86_400, wait_ms=15_000)
        (job,) = (await wire.call("Claim", claim)).jobs
        outcome = failed(job, "secret-f81d4fae")
        await wire.call("ReportOutcome", worker.ReportOutcomeRequest(outcomes=[outcome]))
        done = await wire.submit(TOPIC, b"secret-f81d4fae")
        (job,) = (await wire.call("Claim", claim)).jobs
        await wire.call("ReportOutcome", worker.ReportOutcomeRequest(outcomes=[completed(job)]))
        assert done
        running = await wire.submit(TOPIC, b"secret-f81d4fae")
        (job,) = (await wire.call("Claim", claim)).jobs
        pending = await wire.submit(TOPIC, b"secret-f81d4fae", delay_ms=86_400_000)
        opened = batches.OpenBatchRequest(name="secret-f81d4fae", on_done=producer.NewJob(id=new_id(), topic=TOPIC))
        batch = await call("BatchService/OpenBatch", opened, batches.BatchInfo)
        plain = batches.OpenBatchRequest(name="secret-f81d4fae")
        plain_batch = await call("BatchService/OpenBatch", plain, batches.BatchInfo)
        await wire.submit(TOPIC, b"secret-f81d4fae", delay_ms=86_400_000, batch=plain_batch.id)
        spec = schedules.ScheduleSpec(topic=TOPIC, timing=_cron())
        put = schedules.PutScheduleRequest(name=SCHEDULE, spec=spec)
        await call("ScheduleService/Put", put, schedules.PutScheduleResponse)
        plan = bulk.BulkPlan(verb="discard", filter=f"topic:{TOPIC} state:cancelled", reason="none")
        start = bulk.StartBulkRequest(id=new_id(), plan=plan)
        operation = await call("BulkService/StartBulk", start, bulk.BulkOperation)
        pause = admin.PauseRequest(target=admin.Target(topic=TOPIC), reason="secret-f81d4fae")
        await call("AdminService/Pause", pause, admin.PauseResponse)
        async with Wire(address, token=OTHER) as other, Wire(address, token=LIMITED) as limited:
            for one in (other, limited):  # so that both have a tenant, a topic and jobs of their own
                await one.submit("mail", delay_ms=86_400_000)
        return World(
            pending=pending,
            running=running,
            epoch=job.epoch,
            dead=dead,
            batch=batch.id,
            plain_batch=plain_batch.id,
            operation=operation.id,
        )
