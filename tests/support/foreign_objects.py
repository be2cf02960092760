"""What one tenant has of every kind, and how each method is asked about it: for callers who must not see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

import grpc
from google.protobuf.message import Message

from headgate.wire import admin_pb2 as admin
from headgate.wire import batches_pb2 as batches
from headgate.wire import bulk_pb2 as bulk
from headgate.wire import jobs_pb2 as jobs
from headgate.wire import keys_pb2 as keys
from headgate.wire import producer_pb2 as producer
from headgate.wire import schedules_pb2 as schedules
from headgate.wire import tenants_pb2 as tenants
from headgate.wire import webhooks_pb2 as webhooks
from headgate.wire import worker_pb2 as worker
from tests.support.raw_calls import ask
from tests.support.wire import Wire, completed, failed, new_id

OWNER, OTHER, LIMITED, SYSTEM, ADMIN, OTHER_ADMIN = (
    f"token-{name}-xxxxxxxx" for name in ("own", "oth", "lim", "sys", "adm", "oad")
)
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
    OTHER_ADMIN: {"tenant": "other", "name": "other admin", "scopes": ["admin"]},
    SYSTEM: {"name": "system", "scopes": ["system"]},
    **{f"token-with-{scope}-only": {"tenant": "own", "name": f"only {scope}", "scopes": [scope]} for scope in ALL},
}
NEW_JOB = new_id()  # none is made: it would hang on what its maker may not see
NOBODYS = UUID("01890000-0000-7000-8000-000000000000").bytes
Requests: TypeAlias = "dict[str, Callable[[Any], Message]]"


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
    webhook: bytes
    delivery: bytes
    key: str
    session: str


def objects_of(world: World) -> dict[str, list[tuple[Any, Any, Callable[[Any], Message]]]]:
    """By method: what `own` has, what does not exist, and how to ask about one of them."""

    def one_of(there: Any, ask: Callable[[Any], Message], nowhere: Any = NOBODYS) -> tuple[Any, Any, Any]:
        return there, nowhere, ask

    def held(one: bytes) -> worker.Held:
        return worker.Held(ids=[one], epochs=[world.epoch])

    def done(one: bytes) -> jobs.Outcome:
        return jobs.Outcome(id=one, epoch=world.epoch, completed=jobs.Completed(result=b"forged"))

    def lines(one: bytes) -> worker.JobLines:
        line = jobs.LogLine(seq=1, level=jobs.LOG_LEVEL_ERROR, text="forged")
        return worker.JobLines(id=one, epoch=world.epoch, lines=[line])

    def new(**parts: Any) -> producer.NewJob:
        return producer.NewJob(id=NEW_JOB, topic="mail", **parts)

    def find(kind: Any) -> Callable[[Any], Message]:
        return lambda one: admin.FindIdsRequest(kind=kind, prefix=one.hex()[:28])

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
            one_of(world.running, lambda one: worker.HeartbeatRequest(worker_id=WORKER, held=held(one))),
            one_of(
                world.running,
                lambda one: worker.HeartbeatRequest(worker_id=WORKER, held=held(one), logs=[lines(one)]),
            ),
        ],
        f"{on}WorkerService/ReportOutcome": [
            one_of(world.running, lambda one: worker.ReportOutcomeRequest(outcomes=[done(one)]))
        ],
        f"{on}WorkerService/Work": [
            one_of(
                world.running,
                lambda one: worker.WorkerFrame(
                    logs=[lines(one)], outcomes=worker.Outcomes(seq=1, ids=[one], epochs=[world.epoch])
                ),
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
        f"{on}AdminService/ListJobLogs": [one_of(world.running, lambda one: admin.ListJobLogsRequest(id=one))],
        f"{on}AdminService/FindIds": [
            one_of(there, find(kind))
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
                    name=one, spec=schedules.ScheduleSpec(topic="mail", timing=cron()), expected_version=77
                ),
            )
        ],
    }


def whole_tenant_objects(world: World) -> dict[str, list[tuple[Any, Any, Callable[[Any], Message]]]]:
    """As `_objects`: what tokens of all topics can see of their tenant."""
    on = "/headgate.v1."
    hooks: Requests = {
        "Get": lambda one: webhooks.GetWebhookRequest(id=one),
        "Update": lambda one: webhooks.UpdateWebhookRequest(id=one, description="taken"),
        "Delete": lambda one: webhooks.DeleteWebhookRequest(id=one),
        "RotateSecret": lambda one: webhooks.RotateSecretRequest(id=one),
        "Test": lambda one: webhooks.TestWebhookRequest(id=one),
        "ListDeliveries": lambda one: webhooks.ListDeliveriesRequest(webhook_id=one),
    }
    sent: Requests = {
        "GetDelivery": lambda one: webhooks.GetDeliveryRequest(webhook_id=world.webhook, delivery_id=one),
        "Resend": lambda one: webhooks.ResendRequest(webhook_id=world.webhook, delivery_id=one),
    }
    on_keys: Requests = {
        "GetKey": lambda one: keys.GetKeyRequest(id=one),
        "RotateKey": lambda one: keys.RotateKeyRequest(id=one),
        "RevokeKey": lambda one: keys.RevokeKeyRequest(id=one),
    }
    return {
        **{f"{on}WebhookService/{verb}": [(world.webhook, NOBODYS, ask)] for verb, ask in hooks.items()},
        **{f"{on}WebhookService/{verb}": [(world.delivery, NOBODYS, ask)] for verb, ask in sent.items()},
        **{f"{on}KeyService/{verb}": [(world.key, "00000000", ask)] for verb, ask in on_keys.items()},
        f"{on}KeyService/RevokeSession": [(world.session, "nosession2", lambda one: keys.RevokeSessionRequest(id=one))],
        f"{on}AdminService/StopWorker": [(WORKER, "nobody", lambda one: admin.StopWorkerRequest(worker=one))],
        f"{on}TenantService/GetTenant": [("own", "nil", lambda one: tenants.GetTenantRequest(name=one))],
    }


def cron() -> schedules.Timing:
    return schedules.Timing(cron=schedules.Cron(expression="0 0 1 1 *"))


async def filled(address: str) -> World:
    """What `own` has. A browser of it is signed in already."""
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
        spec = schedules.ScheduleSpec(topic=TOPIC, timing=cron())
        put = schedules.PutScheduleRequest(name=SCHEDULE, spec=spec)
        await call("ScheduleService/Put", put, schedules.PutScheduleResponse)
        plan = bulk.BulkPlan(verb="discard", filter=f"topic:{TOPIC} state:cancelled", reason="none")
        start = bulk.StartBulkRequest(id=new_id(), plan=plan)
        operation = await call("BulkService/StartBulk", start, bulk.BulkOperation)
        pause = admin.PauseRequest(target=admin.Target(topic=TOPIC), reason="secret-f81d4fae")
        await call("AdminService/Pause", pause, admin.PauseResponse)
        endpoint = webhooks.WebhookSpec(
            url="https://93.184.215.14/secret-f81d4fae", events=["job.dead"], topics=["none"]
        )
        made = webhooks.CreateWebhookRequest(spec=endpoint)
        webhook = await call("WebhookService/Create", made, webhooks.WebhookWithSecret)
        test = webhooks.TestWebhookRequest(id=webhook.webhook.id)
        delivery = await call("WebhookService/Test", test, webhooks.Delivery)
        async with Wire(address, token=ADMIN) as administrator:
            new = keys.CreateKeyRequest(name="secret-f81d4fae", scopes=["read"])
            said = await ask(administrator, "/headgate.v1.KeyService/CreateKey", new)
            key = keys.KeyResponse.FromString(said.messages[0]).info.id
            said = await ask(administrator, "/headgate.v1.KeyService/ListSessions", keys.ListSessionsRequest())
            (session,) = keys.ListSessionsResponse.FromString(said.messages[0]).sessions
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
            webhook=webhook.webhook.id,
            delivery=delivery.id,
            key=key,
            session=session.id,
        )
