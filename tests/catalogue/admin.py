"""Rows 37-42, 56-66: schedules, lists, filters, bulk operations, permissions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from headgate.domain.errors import AlreadyExists, HeadgateError, NotFound
from headgate.wire import admin_pb2, bulk_pb2, producer_pb2, schedules_pb2, topics_pb2
from tests.catalogue.table import Case
from tests.support.wire import new_id

OPS, SCHED, OPER = bulk_pb2, schedules_pb2, admin_pb2


def _timing(**timing: Any) -> SCHED.PutScheduleRequest:
    return SCHED.PutScheduleRequest(name="s", spec=SCHED.ScheduleSpec(topic="mail", timing=SCHED.Timing(**timing)))


def _cron(row: int, name: str, expression: str, *says: str, zone: str = "UTC") -> Case:
    return Case(
        row=row,
        name=f"cron: {name}",
        says=says,
        grpc=lambda _: ("ScheduleService/Put", _timing(cron=SCHED.Cron(expression=expression, zone=zone))),
        sdk=lambda hg, _: hg.admin.schedules.put("s", "mail", cron=expression, zone=zone),
        cli=("schedule", "put", "s", "mail", "--cron", expression, "--zone", zone),
    )


def _listed(name: str, *says: str, code: str = "invalid_input", cli: tuple[str, ...] | None = None, **ask: Any) -> Case:
    return Case(
        row=64,
        name=f"list: {name}",
        says=says,
        code=code,
        grpc=lambda _: ("BulkService/ListJobs", OPS.ListJobsRequest(**ask)),
        cli=cli,
    )


def _filter(row: int, name: str, text: str, *says: str, code: str = "invalid_filter") -> Case:
    return Case(
        row=row,
        name=f"filter: {name}",
        says=says,
        code=code,
        grpc=lambda _: ("BulkService/ListJobs", OPS.ListJobsRequest(filter=text)),
        sdk=lambda hg, _: hg.admin.jobs_matching(text).page(),
        raises=HeadgateError,
        cli=("job", "list", "--filter", text),
    )


def _plan(row: int, name: str, *says: str, code: str = "invalid_input", **plan: Any) -> Case:
    start = OPS.StartBulkRequest(id=new_id(), plan=OPS.BulkPlan(**plan))
    return Case(
        row=row,
        name=f"operation: {name}",
        says=says,
        code=code,
        grpc=lambda _: ("BulkService/StartBulk", start),
    )


SCHEDULES = [
    _cron(37, "three fields", "* * *", "cron", "5"),
    _cron(38, "minute 60", "60 * * * *", "cron", "minute", "0..59"),
    _cron(39, "the 30th of February", "0 0 30 2 *", "cron", "never"),
    _cron(40, "six fields", "0 * * * * *", "cron", "5"),
    _cron(40, "a word", "hourly", "cron"),
    _cron(41, "a zone that is none", "0 0 * * *", "zone", zone="Mars/Olympus"),
    _cron(41, "a zone that is a path", "0 0 * * *", "zone", zone="../../etc/passwd"),
    _cron(41, "a zone that is a file", "0 0 * * *", "zone", zone="/etc/localtime"),
    Case(
        row=42,
        name="a name that is taken",
        code="already_exists",
        says=("nightly",),
        grpc=lambda _: (
            "ScheduleService/Put",
            SCHED.PutScheduleRequest(
                name="nightly",
                spec=SCHED.ScheduleSpec(topic="mail", timing=SCHED.Timing(cron=SCHED.Cron(expression="1 1 * * *"))),
                expected_version=0,
            ),
        ),
        sdk=lambda hg, _: hg.admin.schedules.put("nightly", "mail", cron="1 1 * * *", version=0),
        raises=AlreadyExists,
        cli=("schedule", "put", "nightly", "mail", "--cron", "1 1 * * *", "--version", "0"),
        exits=4,
    ),
    Case(
        row=42,
        name="a schedule that is not there",
        code="not_found",
        says=("no schedule", "weekly"),
        grpc=lambda _: ("ScheduleService/Get", SCHED.GetScheduleRequest(name="weekly")),
        sdk=lambda hg, _: hg.admin.schedules.get("weekly"),
        raises=NotFound,
        cli=("schedule", "get", "weekly"),
        exits=3,
    ),
    Case(
        row=37,
        name="no time at all",
        says=("timing", "one of at, after, every, cron"),
        grpc=lambda _: ("ScheduleService/Put", _timing()),
    ),
    Case(
        row=37,
        name="every 0 ms",
        says=("every", "from 1s"),
        grpc=lambda _: ("ScheduleService/Put", _timing(every=SCHED.Every(interval_ms=0))),
        cli=("schedule", "put", "s", "mail", "--every", "0s"),
    ),
    Case(
        row=37,
        name="an overlap nobody knows",
        says=("overlap", "allow, skip, replace"),
        grpc=lambda _: ("ScheduleService/Put", SCHED.PutScheduleRequest(name="s", spec=SCHED.ScheduleSpec(overlap=9))),  # type: ignore[arg-type]
        cli=("schedule", "put", "s", "mail", "--every", "5m", "--overlap", "wait"),
    ),
]
READS = [
    Case(
        row=43,
        name="reading a job that never was",
        code="not_found",
        says=("no job",),
        grpc=lambda _: ("ProducerService/GetJob", producer_pb2.GetJobRequest(id=new_id())),
        sdk=lambda hg, _: hg.get(UUID(bytes=new_id())),
        raises=NotFound,
        cli=("job", "get", str(UUID(bytes=new_id()))),
        exits=3,
    ),
    Case(
        row=43,
        name="reading a job of another tenant",
        code="not_found",
        says=("no job",),
        grpc=lambda world: ("ProducerService/GetJob", producer_pb2.GetJobRequest(id=UUID(world.theirs).bytes)),
        sdk=lambda hg, world: hg.get(world.theirs),
        raises=NotFound,
        cli=lambda world: ("job", "get", world.theirs),
        exits=3,
    ),
    Case(
        row=43,
        name="an id of 5 bytes",
        says=("id", "16 bytes"),
        grpc=lambda _: ("ProducerService/WaitResult", producer_pb2.WaitResultRequest(id=b"short")),
    ),
]
LISTS = [
    _listed("a million a page", "limit", "1 to 1000", limit=10**6, cli=("job", "list", "--limit", "-1")),
    _listed(
        "a cursor of ours, changed", "cursor", "start again", cursor="x" * 40, cli=("job", "list", "--cursor", "x")
    ),
    Case(
        row=64,
        name="list: the cursor of another filter",
        says=("cursor", "start again"),
        grpc=lambda world: ("BulkService/ListJobs", OPS.ListJobsRequest(filter="state:dead", cursor=world.cursor)),
        sdk=lambda hg, world: hg.admin.jobs_matching("state:dead").page(cursor=world.cursor),
        cli=lambda world: ("job", "list", "--filter", "state:dead", "--cursor", world.cursor),
    ),
    Case(
        row=64,
        name="count: up to a million",
        says=("up_to", "100000"),
        grpc=lambda _: ("BulkService/CountJobs", OPS.CountJobsRequest(up_to=10**6)),
    ),
    Case(
        row=64,
        name="topics: a million a page",
        says=("limit", "1 to 1000"),
        grpc=lambda _: ("TopicService/ListTopics", topics_pb2.ListTopicsRequest(limit=10**6)),
    ),
    Case(
        row=64,
        name="schedules: a million a page",
        says=("limit", "1 to 1000"),
        grpc=lambda _: ("ScheduleService/List", SCHED.ListSchedulesRequest(limit=10**6)),
    ),
    _filter(65, "an injection", "' OR 1=1--", "has no field"),
    _filter(65, "a lone wildcard", "%", "has no field"),
    _filter(65, "a field nobody knows", "stat:dead", "state"),
    _filter(65, "an open quote", 'error:"timed out', "quote"),
    _filter(65, "5 KB of text", "topic:" + "(a+)+" * 1_000, "filter", "limit of 4000", code="too_large"),
    _filter(65, "a path as deep as a well", "args" + ".a" * 500 + ":1", ""),
]
BULK = [
    _plan(66, "no filter", "filter", "topic:*", verb="discard", filter=""),
    _plan(66, "no verb", "verb", "cancel, redrive, discard", filter="state:dead"),
    _plan(66, "a verb nobody knows", "verb", "cancel, redrive, discard", verb="drop", filter="state:dead"),
    _plan(66, "a delay past any calendar", "delay", verb="redrive", filter="state:dead", delay_ms=2**62),
    _plan(66, "a move to nowhere", "topic", verb="move", filter="topic:mail", topic="no topic"),
    Case(
        row=66,
        name="dead letters of nobody in particular",
        says=("topic", "--filter"),
        cli=("dead", "discard", "--yes"),
    ),
    Case(
        row=66,
        name="1,001 ids",
        code="too_large",
        says=("ids", "1001 jobs", "1000", "several calls"),
        grpc=lambda _: ("AdminService/CancelJobs", OPER.CancelJobsRequest(ids=[b"x" * 16] * 1_001)),
    ),
    Case(
        row=66,
        name="a pause of nothing in particular",
        says=("target",),
        grpc=lambda _: ("AdminService/Pause", OPER.PauseRequest(reason="why")),
        sdk=lambda hg, _: hg.admin.pause(reason="why"),
        cli=("pause",),
    ),
    Case(
        row=66,
        name="a pause until past any calendar",
        says=("until",),
        grpc=lambda _: (
            "AdminService/Pause",
            OPER.PauseRequest(target=OPER.Target(tenant=True), until_us=2**63 - 1),
        ),
        cli=("pause", "--tenant", "--until", "99999999999d"),
    ),
    Case(
        row=66,
        name="a limit of minus one",
        says=("max_running", "1"),
        grpc=lambda _: (
            "TopicService/SetTopic",
            topics_pb2.SetTopicRequest(name="mail", settings=topics_pb2.TopicSettings(max_running=2**32 - 1)),
        ),
        cli=("topic", "set", "mail", "--max-running=-1"),
    ),
    Case(
        row=66,
        name="a rate over minus a year",
        says=("rate",),
        grpc=lambda _: (
            "TopicService/SetTopic",
            topics_pb2.SetTopicRequest(
                name="mail",
                settings=topics_pb2.TopicSettings(rate=topics_pb2.Rate(count=1, period_ms=-(2**63))),
            ),
        ),
        cli=("topic", "set", "mail", "--rate", "5/0s"),
    ),
]


def _policy(name: str, option: str, value: str, *says: str, **settings: Any) -> Case:
    request = topics_pb2.ApplyTopicRequest(name="mail", settings=topics_pb2.TopicSettings(**settings))
    return Case(
        row=66,
        name=name,
        says=says,
        grpc=lambda _: ("TopicService/ApplyTopic", request),
        cli=("topic", "set", "mail", option, value),
    )


_WRONG, _ELSEWHERE = '{"type": 3}', '{"$ref": "http://169.254.169.254/x"}'
POLICIES: list[Case] = [
    _policy(
        "a schema that is no JSON Schema",
        "--payload-schema",
        _WRONG,
        "payload_schema",
        "usable JSON Schema",
        payload_schema=_WRONG,
    ),
    _policy(
        "a schema that refers to another host",
        "--payload-schema",
        _ELSEWHERE,
        "$ref must stay within the document",
        payload_schema=_ELSEWHERE,
    ),
    _policy("a dead-letter topic that is the topic", "--dead-letter-topic", "mail", "itself", dead_letter_topic="mail"),
    _policy("no consumers at all", "--max-consumers", "0", "max_consumers", max_consumers=0),
    _policy("a lease of no time", "--lease", "0s", "lease", lease_ms=0),
]
CASES: list[Case] = [*POLICIES, *SCHEDULES, *READS, *LISTS, *BULK]
