"""What a server knows of a job, a topic or a schedule arrives at the user of the SDK: no field is lost on the way.

One field of a whole view is changed after the other: each change is seen in the message. One field of a whole message
is taken away after the other: each is missed in what the SDK makes of it, or in what the server makes of a request.
What is left out on purpose is listed.
"""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from types import UnionType
from typing import Any, cast
from unittest.mock import AsyncMock, Mock, patch
from uuid import UUID

import pytest
from google.protobuf.message import Message

from headgate.api.grpc import (
    admin_service,
    batch_service,
    bulk_service,
    codec,
    key_service,
    schedule_codec,
    stats_service,
    tenant_service,
    topic_service,
    webhook_service,
    worker_codec,
)
from headgate.api.grpc.submit_codec import submission_of
from headgate.domain.api_keys import KeyView
from headgate.domain.backoff import RetryPolicy
from headgate.domain.bulk import BulkOperation, DeadGroup, JobLine
from headgate.domain.dependencies import BatchStatus, Met
from headgate.domain.errors import HeadgateError
from headgate.domain.ids import JobId
from headgate.domain.job_logs import LogPage
from headgate.domain.schedules import After, Cron, Every
from headgate.domain.stats import Interval
from headgate.domain.tenants import TenantView
from headgate.domain.topic_limits import Rate
from headgate.domain.topic_policy import PolicyChange, PolicyVersion
from headgate.domain.topic_rules import Declaration, Origin, RuleSources
from headgate.domain.topic_sets import TopicSet
from headgate.domain.views import AuditPage, JobView, ScheduledJob, ScheduleView, Status, Target, TargetKind, TopicView
from headgate.domain.web_sessions import WebSession
from headgate.domain.webhooks import DeliveryView, Webhook
from headgate.domain.workers import WorkerList
from headgate.sdk import batches as sdk_batches
from headgate.sdk import handles
from headgate.sdk.admin import (
    bulk,
    dead,
    history,
    job_logs,
    keys,
    schedules,
    sessions,
    stats,
    tenants,
    topics,
    webhooks,
)
from headgate.sdk.admin.client import Admin
from headgate.sdk.admin.schedules import Schedules
from headgate.sdk.admin.workers import Workers
from headgate.wire import (
    admin_pb2,
    batches_pb2,
    bulk_pb2,
    jobs_pb2,
    keys_pb2,
    producer_pb2,
    schedules_pb2,
    stats_pb2,
    tenants_pb2,
    topics_pb2,
    webhooks_pb2,
)

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
_MINUTES = {"ageing_step", "lease", "time_limit"}
"""Spans that are shorter than a day; all others are days."""
_BY_FIELD: Mapping[str, Callable[[int], Any]] = {
    "progress": lambda n: {"done": n, "total": 9, "message": f"part {n}"},
    "parameters": lambda n: {"priority": n, "topic": f"topic-{n}", "delay_ms": n},
    "quotas": lambda n: {"max_topics": n},
    "used": lambda n: {"max_topics": n},
    "met": lambda n: (Met.GONE, Met.FULFILLED, Met.DEAD)[n],
    "payload_schema": lambda n: f'{{"title":"{n}"}}',
    "settings": lambda n: {"max_attempts": n},
}
_BY_TYPE: Mapping[object, Callable[[int], Any]] = {
    str: lambda n: f"text-{n}",
    int: lambda n: n,
    float: lambda n: n + 0.5,
    bool: lambda n: n % 2 == 1,
    bytes: lambda n: bytes([n]) * 16,
    object: lambda n: f"any-{n}",
    datetime: lambda n: NOON + timedelta(minutes=n),
    date: lambda n: NOON.date() + timedelta(days=n),
    UUID: lambda n: _id(n),
    JobId: lambda n: JobId(_id(n)),
    RetryPolicy: lambda n: RetryPolicy.fixed(timedelta(seconds=n)),
    Rate: lambda n: Rate(count=n, period=timedelta(seconds=1), burst=n + 1),
    TopicSet: lambda n: TopicSet.of(f"topic-{n}"),
    Target: lambda n: Target(kind=TargetKind.TOPIC, topic=f"topic-{n}"),
    RuleSources: lambda _: RuleSources(),
    PolicyChange: lambda n: PolicyChange(
        setting="max_attempts", before=n, after=n + 1, before_origin=Origin.DECLARED, after_origin=Origin.OPERATOR
    ),
    Declaration: lambda n: Declaration(
        source=f"app-{n}", rules={"max_attempts": n}, version=n, workers=[f"w-{n}"], by="ana", at=NOON
    ),
}


def _id(number: int) -> UUID:
    return UUID(f"01890000-0000-7000-8000-{number:012x}")


# --- views -----------------------------------------------------------------------------------------------------------


def made(kind: Any, number: int, *, name: str = "") -> Any:
    """A value of a type, or of a field of that name; another number makes another one."""
    if name in _BY_FIELD:
        return _BY_FIELD[name](number)
    if kind in _BY_TYPE:
        return _BY_TYPE[kind](number)
    if kind is timedelta:
        return timedelta(minutes=number) if name in _MINUTES else timedelta(days=number)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (UnionType, typing.Union):
        return made(parts[0], number, name=name)
    if origin is tuple and parts[-1] is not Ellipsis:
        return tuple(made(part, number) for part in parts)
    if origin is frozenset:
        return frozenset({made(parts[0], number)})
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {made(parts[0], number): made(parts[1], number)}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return origin((made(parts[0], number),)) if origin is tuple else [made(parts[0], number)]
    if issubclass(kind, Enum):
        return list(kind)[number % len(kind)]
    hints = typing.get_type_hints(kind)
    return kind(**{one.name: made(hints[one.name], number, name=one.name) for one in fields(kind) if one.init})


def changed(whole: Any) -> Iterator[tuple[str, Any]]:
    """The same view with one field changed, for each field of it and of what is in it, by the path of the field."""
    hints = typing.get_type_hints(type(whole))
    for one in fields(whole):
        inner = getattr(whole, one.name)
        first = inner[0] if isinstance(inner, list | tuple) and inner else None
        if _is_taken_apart(inner):
            for path, other in changed(inner):
                yield f"{one.name}.{path}", replace(whole, **{one.name: other})
        elif _is_taken_apart(first):
            for path, other in changed(first):
                yield f"{one.name}.{path}", replace(whole, **{one.name: type(inner)((other,))})
        elif _is_fixed(hints[one.name]):
            others = made(hints[one.name], 2)
            for at in range(len(inner)):
                other = (*inner[:at], others[at], *inner[at + 1 :])
                yield f"{one.name}.{at}", replace(whole, **{one.name: other})
        elif one.init:
            yield one.name, replace(whole, **{one.name: made(hints[one.name], 2, name=one.name)})


def _is_fixed(kind: Any) -> bool:
    """Whether it is a tuple whose parts have places."""
    first = typing.get_args(kind)[0] if typing.get_origin(kind) in (UnionType, typing.Union) else kind
    return typing.get_origin(first) is tuple and typing.get_args(first)[-1] is not Ellipsis


def _is_taken_apart(value: object) -> bool:
    return is_dataclass(value) and not isinstance(value, type) and type(value) not in _BY_TYPE


def answered(module: Any, method: str, service: Any, request: Message) -> Message:
    """What a method of a service answers."""
    with patch.object(module, "caller"):
        return cast("Message", asyncio.run(getattr(service, method)(request, Mock())))


def workers_listed(view: WorkerList) -> Message:
    admin = Mock(workers=AsyncMock(return_value=view))
    service = admin_service.AdminService(admin, Mock(), Mock())
    return answered(admin_service, "list_workers", service, admin_pb2.ListWorkersRequest())


def audited(view: AuditPage) -> Message:
    service = admin_service.AdminService(Mock(audit=AsyncMock(return_value=view)), Mock(), Mock())
    return answered(admin_service, "list_audit", service, admin_pb2.ListAuditRequest())


def logged(view: LogPage) -> Message:
    service = admin_service.AdminService(Mock(), Mock(), Mock(logs=AsyncMock(return_value=view)))
    return answered(admin_service, "list_job_logs", service, admin_pb2.ListJobLogsRequest(id=_id(1).bytes))


SCHEDULE = made(ScheduleView, 1)
VIEWS: Mapping[str, tuple[Any, Callable[[Any], Message], set[str]]] = {
    "job": (
        made(JobView, 1),
        codec.job_info,
        {
            "topic_no",
            "policy_no",
            "last_outcome",
            "owner",
            "rank_class",
            "rank_at",
            "flags",
            "read_at",
            "events.detail",
        },
    ),
    "line of a list": (made(JobLine, 1), lambda one: bulk_service._line(one, "acme"), {"topic_no"}),
    "schedule": (SCHEDULE, schedule_codec.schedule, {"schedule_no", "skips.at", "skips.why"}),
    **{
        f"schedule {timing}": (
            replace(SCHEDULE, spec=replace(SCHEDULE.spec, timing=timing)),
            schedule_codec.schedule,
            {"schedule_no", "skips.at", "skips.why"},
        )
        for timing in (
            Every(interval=timedelta(hours=1), anchor=NOON),
            After(delay=timedelta(hours=1), at=NOON),
            Cron(expression="0 7 * * 1", zone="Europe/Zurich"),
        )
    },
    "job of a schedule": (made(ScheduledJob, 1), schedule_codec.scheduled_job, set()),
    "batch": (made(BatchStatus, 1), batch_service.info, {"topics"}),
    "operation": (made(BulkOperation, 1), bulk_service._operation, {"as_of"}),
    "dead letters": (made(DeadGroup, 1), bulk_service.dead_group, set()),
    "topic": (made(TopicView, 1), topic_service.topic_info, {"no", "sources"}),
    "version of a policy": (made(PolicyVersion, 1), topic_service._version, set()),
    "webhook": (made(Webhook, 1), webhook_service.webhook, set()),
    "delivery": (made(DeliveryView, 1), webhook_service.delivery, set()),
    "key": (made(KeyView, 1), key_service._info, {"expired"}),
    "session": (
        made(WebSession, 1),
        key_service._session,
        {"credential", "scopes", "topics", "credential_expires"},
    ),
    "tenant": (made(TenantView, 1), tenant_service._info, set()),
    "status": (made(Status, 1), admin_service._status, set()),
    "workers": (
        made(WorkerList, 1),
        workers_listed,
        {"workers.incarnation", "workers.takes_stop", "workers.running.worker", "workers.running.instance"},
    ),
    "audit": (made(AuditPage, 1), audited, {"entries.tenant_no"}),
    "log": (made(LogPage, 1), logged, set()),
    "interval": (made(Interval, 1), stats_service._interval, set()),
}


@pytest.mark.parametrize("name", VIEWS)
def test_each_field_of_a_view_is_seen_in_its_message(name: str) -> None:
    whole, written, left_out = VIEWS[name]
    before = written(whole)
    unseen = {path for path, other in changed(whole) if written(other) == before}
    assert {_known(path, left_out) for path in unseen} == left_out


def _known(path: str, left_out: set[str]) -> str:
    """The path, or what is left out as a whole with it."""
    return next((one for one in left_out if path == one or path.startswith(f"{one}.")), path)


# --- messages --------------------------------------------------------------------------------------------------------

_TEXTS = {
    "oldest_day": "2026-07-01",
    "oldest_waiting": "2026-07-02",
    "detail_json": '{"a":1}',
    "zone": "Europe/Zurich",
    "mode": "group",
}


def filled(message: Message) -> Message:
    """All fields set; of those that exclude each other, the first."""
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        if oneof is not None and message.WhichOneof(oneof.name) is not None:
            continue
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            key = _scalar(inner.fields_by_name["key"])
            value = inner.fields_by_name["value"]
            if value.message_type is None:
                getattr(message, field.name)[key] = _scalar(value)
            else:  # of the origins of settings
                filled(getattr(message, field.name)["max_attempts"])
        elif field.is_repeated and inner is not None:
            filled(getattr(message, field.name).add())
        elif field.is_repeated:
            getattr(message, field.name).append(_scalar(field))
        elif inner is not None:
            getattr(message, field.name).SetInParent()
            filled(getattr(message, field.name))
        else:
            setattr(message, field.name, _scalar(field))
    return message


def _scalar(field: Any) -> Any:
    match field.cpp_type:
        case field.CPPTYPE_STRING if field.type == field.TYPE_BYTES:
            return _id(1).bytes
        case field.CPPTYPE_STRING:
            return _TEXTS.get(field.name, "max_attempts" if field.name == "setting" else "text")
        case field.CPPTYPE_BOOL:
            return True
        case field.CPPTYPE_ENUM:
            return field.enum_type.values[-1].number
        case field.CPPTYPE_DOUBLE | field.CPPTYPE_FLOAT:
            return 0.5
        case _:
            return (
                1_800_000_000_000_000
                if field.name.endswith("_us")
                else 172_800_000
                if field.name.endswith("_ms")
                else 7
            )


def without(message: Message) -> Iterator[tuple[str, Message]]:
    """The same message without one field, for each field of it and of what is in it, by the path of the field."""

    def parts(of: Any, path: str) -> Iterator[tuple[str, Callable[[Any], Any], str]]:
        for field, value in of.ListFields():
            inner = field.message_type
            here = f"{path}{field.name}"
            if inner is None or inner.GetOptions().map_entry:
                yield here, lambda whole: whole, field.name
            elif field.is_repeated:
                for below, find, last in parts(value[0], f"{here}."):
                    yield below, lambda whole, find=find, name=field.name: find(getattr(whole, name)[0]), last
            else:
                for below, find, last in parts(value, f"{here}."):
                    yield below, lambda whole, find=find, name=field.name: find(getattr(whole, name)), last

    for path, find, last in parts(message, ""):
        copy = type(message)()
        copy.CopyFrom(message)
        find(copy).ClearField(last)
        yield path, copy


def asked(call: Callable[[Any], Any]) -> Callable[[Message], object]:
    """What a call of the SDK makes of an answer."""

    def read(answer: Message) -> object:
        connection: Any = Mock(call=AsyncMock(return_value=answer), encryption=None)
        found = asyncio.run(call(connection))
        return found, dict(getattr(found, "__dict__", {}))

    return read


ANSWERS: Mapping[str, tuple[Message, Callable[[Any], object], set[str]]] = {
    "job": (
        jobs_pb2.JobInfo(),
        handles.job_info,
        {"epoch", "events", "older_events", "lineage.triggered", "progress.at_us"},
    ),
    "event of a job": (jobs_pb2.Event(), history.job_event, set()),
    "schedule": (schedules_pb2.Schedule(), schedules.schedule_info, {"spec.retry", "spec.catch_up_most"}),
    "jobs of a schedule": (
        schedules_pb2.ScheduleJobsResponse(),
        asked(lambda connection: Schedules(connection).jobs("s")),
        set(),
    ),
    "batch": (batches_pb2.BatchInfo(), sdk_batches.batch_info, set()),
    "operation": (bulk_pb2.BulkOperation(), bulk.operation_info, {"looked", "topics", "touched_us"}),
    "dead letters": (bulk_pb2.DeadGroup(), dead.group_of, set()),
    "topic": (topics_pb2.TopicInfo(), topics._info, set()),
    "versions of a policy": (
        topics_pb2.ListTopicVersionsResponse(),
        asked(lambda connection: Admin(connection).topics.history("t")),
        {"versions.changes.before", "versions.changes.after"},  # of the settings only the one that is named
    ),
    "webhook": (webhooks_pb2.Webhook(), webhooks._info, set()),
    "delivery": (webhooks_pb2.Delivery(), webhooks._delivery, set()),
    "key": (keys_pb2.KeyInfo(), keys._info, set()),
    "session": (keys_pb2.SessionInfo(), sessions._info, set()),
    "tenant": (tenants_pb2.TenantInfo(), tenants._info, set()),
    "status": (admin_pb2.StatusResponse(), asked(lambda connection: Admin(connection).status()), set()),
    "workers": (admin_pb2.ListWorkersResponse(), asked(lambda connection: Workers(connection).list()), set()),
    "audit": (admin_pb2.ListAuditResponse(), asked(lambda connection: Admin(connection).audit()), set()),
    "log": (admin_pb2.StoredLogLine(), job_logs._line, set()),
    "interval": (stats_pb2.Interval(), stats._interval, set()),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_each_field_of_an_answer_is_seen_by_the_user_of_the_sdk(name: str) -> None:
    message, read, left_out = ANSWERS[name]
    whole = filled(message)
    before = read(whole)

    def differs(answer: Message) -> bool:
        try:
            return read(answer) != before
        except (HeadgateError, TypeError, ValueError):  # it cannot be read without
            return True

    unseen = {path for path, answer in without(whole) if not differs(answer)}
    assert {_known(path, left_out) for path in unseen} == left_out


# --- requests --------------------------------------------------------------------------------------------------------


def new_job(**chosen: Any) -> Message:
    """Its delay excludes a time, as does the span of its deadline; it does not wait for itself."""
    job = filled(producer_pb2.NewJob())
    for name in ("delay_ms", "run_at_us", "deadline_ms", "deadline_us", "depends_on"):
        job.ClearField(name)
    job.MergeFrom(producer_pb2.NewJob(depends_on=[_id(2).bytes], **chosen))
    return job


def schedule_spec(timing: schedules_pb2.Timing) -> Message:
    spec = filled(schedules_pb2.ScheduleSpec())
    spec.ClearField("timing")
    spec.MergeFrom(schedules_pb2.ScheduleSpec(timing=timing, catch_up=schedules_pb2.CATCH_UP_ALL))
    return spec


def submission(job: Any) -> object:
    return submission_of(job, tenant="acme", make_id=lambda: JobId(_id(3)))


_DAY_MS = 86_400_000
REQUESTS: Mapping[str, tuple[Message, Callable[[Any], object], set[str]]] = {
    "job in a while": (new_job(delay_ms=_DAY_MS, deadline_ms=2 * _DAY_MS), submission, set()),
    "job at a time": (
        new_job(run_at_us=1_800_000_000_000_000, deadline_us=1_800_000_001_000_000),
        submission,
        set(),
    ),
    "schedule at a time": (schedule_spec(schedules_pb2.Timing(at_us=7)), schedule_codec.spec_of, set()),
    "schedule on a grid": (
        schedule_spec(schedules_pb2.Timing(every=schedules_pb2.Every(interval_ms=_DAY_MS, anchor_us=7))),
        schedule_codec.spec_of,
        set(),
    ),
    "schedule by a clock": (
        schedule_spec(schedules_pb2.Timing(cron=schedules_pb2.Cron(expression="0 7 * * 1", zone="Europe/Zurich"))),
        schedule_codec.spec_of,
        set(),
    ),
    "settings of a topic": (filled(topics_pb2.TopicSettings()), topic_service.changes_of, set()),
    "webhook": (filled(webhooks_pb2.WebhookSpec()), webhook_service.spec_of, set()),
    "change of a webhook": (
        filled(webhooks_pb2.UpdateWebhookRequest()),
        webhook_service.changes_of,
        {"id", "expected_version", "reason"},
    ),
    "operation": (filled(bulk_pb2.BulkPlan()), bulk_service._request, set()),
    "failed attempt": (
        jobs_pb2.Outcome(failed=jobs_pb2.Failed(type="E", message="m", traceback="t", permanent=True)),
        worker_codec.outcome_of,
        set(),
    ),
    "nack": (jobs_pb2.Outcome(nack=jobs_pb2.Nack(delay_ms=7, reason="r")), worker_codec.outcome_of, set()),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_each_field_of_a_request_is_seen_by_the_server(name: str) -> None:
    whole, read, left_out = REQUESTS[name]
    before = read(whole)

    def differs(request: Message) -> bool:
        try:
            return read(request) != before
        except HeadgateError:
            return True

    unseen = {path for path, request in without(whole) if not differs(request)}
    assert {_known(path, left_out) for path in unseen} == left_out


async def test_a_key_for_no_topic_is_not_one_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_service, "caller", Mock())
    keys_of = Mock(create=AsyncMock(return_value=(made(KeyView, 1), "hg_k")))
    service = key_service.KeyService(keys_of, Mock())
    for request, topics_of in (
        (keys_pb2.CreateKeyRequest(), None),
        (keys_pb2.CreateKeyRequest(limited_to_topics=True), []),
        (keys_pb2.CreateKeyRequest(topics=["mail"]), ["mail"]),
    ):
        await service.create_key(request, Mock())
        assert keys_of.create.await_args.kwargs["topics"] == topics_of


async def test_an_empty_payload_of_a_redrive_is_another_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_service, "caller", Mock())
    admin = Mock(redrive=AsyncMock(return_value=[]))
    service = admin_service.AdminService(admin, Mock(), Mock())
    for request, payload in (
        (admin_pb2.RedriveJobsRequest(), None),
        (admin_pb2.RedriveJobsRequest(payload=b""), b""),
    ):
        await service.redrive_jobs(request, Mock())
        assert admin.redrive.await_args.kwargs["payload"] == payload
