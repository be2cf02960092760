"""`hg.admin` without a server: what is asked for, what is made of the answers, and what is refused before a call."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from google.protobuf.message import Message

from headgate import Encryption, InvalidInput
from headgate.domain import limits
from headgate.domain.envelope import MAGIC
from headgate.sdk.admin import bulk, find_ids, jobs, keys, schedules
from headgate.sdk.admin import webhooks as hooks
from headgate.sdk.admin.bulk import Bulk
from headgate.sdk.admin.events import events as read_events
from headgate.sdk.admin.jobs import Jobs
from headgate.sdk.admin.listing import MatchingJobs
from headgate.sdk.admin.retention import RetentionAdmin
from headgate.sdk.admin.schedules import Schedules
from headgate.sdk.admin.webhooks import WebhooksAdmin
from headgate.sdk.errors import AmbiguousId
from headgate.wire import admin_pb2, bulk_pb2, events_pb2, jobs_pb2, schedules_pb2, webhooks_pb2

JOB = UUID("01890000-0000-7000-8000-000000000007")
HOURLY = schedules_pb2.ScheduleSpec(
    topic="mail", timing=schedules_pb2.Timing(every=schedules_pb2.Every(interval_ms=3_600_000))
)
NAIVE = datetime(2026, 3, 1)  # noqa: DTZ001 - that is what is refused


class Server:
    """Stands for the connection: notes each request, and gives one answer after the other, or the last one again."""

    def __init__(self, *answers: Message, encryption: Encryption | None = None) -> None:
        self._answers, self.encryption = list(answers), encryption
        self.requests: list[Any] = []

    async def call(self, method: object, request: Message, **options: object) -> Any:
        del method, options
        copy = type(request)()
        copy.CopyFrom(request)
        self.requests.append(copy)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def of(kind: Callable[..., Any], server: Server, *args: object) -> Any:
    return kind(cast("Any", server), *args)


@pytest.fixture
def encryption() -> Encryption:
    return Encryption({"one": Encryption.new_key()}, write="one")


async def test_errors_of_a_preview_and_of_a_history_are_decrypted(encryption: Encryption) -> None:
    sealed = encryption.seal_text("no such customer", JOB.bytes, limit=1_000)
    sample = jobs_pb2.JobInfo(id=JOB.bytes, last_error=sealed, state=jobs_pb2.STATE_DEAD)
    seen = await of(Bulk, Server(bulk_pb2.BulkPreview(sample=[sample]), encryption=encryption)).preview("cancel", "")
    assert [job.last_error for job in seen.sample] == ["no such customer"]
    event = jobs_pb2.Event(kind="failed", state=jobs_pb2.STATE_DEAD, error_message=sealed, error_trace=sealed)
    server = Server(jobs_pb2.JobInfo(events=[event]), encryption=encryption)
    (shown,) = await of(Jobs, server).events(JOB)
    assert (shown.error_message, shown.error_trace) == ("no such customer", "no such customer")


async def test_bodies_of_redrives_and_schedules_are_encrypted(encryption: Encryption) -> None:
    server = Server(admin_pb2.JobsResponse(), encryption=encryption)
    await of(Jobs, server).redrive(JOB, payload={"card": "4111"})
    assert server.requests[0].payload.startswith(MAGIC)
    made = schedules_pb2.Schedule(name="nightly", spec=HOURLY)
    server = Server(schedules_pb2.PutScheduleResponse(schedule=made), encryption=encryption)
    await of(Schedules, server).put("nightly", "mail", {"card": "4111"}, every=60)
    assert server.requests[0].spec.payload.startswith(MAGIC)


async def test_times_without_a_zone_and_bad_versions_are_bad_input_before_a_call() -> None:
    server = Server(schedules_pb2.NextResponse())
    calls = {
        "start": of(Schedules, server).preview(cron="@daily", start=NAIVE),
        "before": of(Schedules, server).jobs("nightly", before=NAIVE),
        "since": of(Schedules, server).resume("nightly", since=NAIVE),
        "version": of(WebhooksAdmin, server).update(JOB, version=-1),
    }
    for field, call in calls.items():
        with pytest.raises(InvalidInput) as refused:
            await call
        assert refused.value.field == field
    assert server.requests == []


async def test_occurrences_are_shown_by_the_clocks_of_the_zone() -> None:
    answer = schedules_pb2.NextResponse(zone="Europe/Zurich", at_us=[0])
    (moment,) = await of(Schedules, Server(answer)).next("nightly", 1)
    assert moment == datetime(1970, 1, 1, 1, tzinfo=ZoneInfo("Europe/Zurich"))
    assert (moment.hour, str(moment.tzinfo)) == (1, "Europe/Zurich")


async def test_a_list_is_read_to_its_end_whatever_the_size_of_its_last_page() -> None:
    full = schedules_pb2.ListSchedulesResponse(
        schedules=[schedules_pb2.Schedule(name=f"s{n}", spec=HOURLY) for n in range(schedules._PAGE)]
    )
    server = Server(
        full, schedules_pb2.ListSchedulesResponse(schedules=[schedules_pb2.Schedule(name="last", spec=HOURLY)])
    )
    assert len(await of(Schedules, server).list()) == schedules._PAGE + 1
    assert [request.after for request in server.requests] == ["", f"s{schedules._PAGE - 1}"]
    page = webhooks_pb2.ListWebhooksResponse(
        webhooks=[webhooks_pb2.Webhook(id=UUID(int=n).bytes) for n in range(limits.PAGE_MAX)]
    )
    server = Server(page, webhooks_pb2.ListWebhooksResponse())
    assert len(await of(WebhooksAdmin, server).list()) == limits.PAGE_MAX
    assert server.requests[1].after == UUID(int=limits.PAGE_MAX - 1).bytes


async def test_jobs_that_match_continue_while_there_is_a_cursor_also_after_a_short_page() -> None:
    def page(cursor: str, *numbers: int) -> bulk_pb2.ListJobsResponse:
        found = [jobs_pb2.JobInfo(id=UUID(int=n).bytes, state=jobs_pb2.STATE_DEAD) for n in numbers]
        return bulk_pb2.ListJobsResponse(jobs=found, cursor=cursor)

    server = Server(page("a", 1), page("b"), page("", 2))
    assert [job.id.int async for job in of(MatchingJobs, server, "state:dead")] == [1, 2]
    assert [request.cursor for request in server.requests] == ["", "a", "b"]


async def test_a_wait_for_an_operation_ends_with_its_time_limit() -> None:
    running = bulk_pb2.BulkOperation(id=JOB.bytes, state=bulk_pb2.BULK_RUNNING)
    assert (await of(Bulk, Server(running)).wait(JOB, timeout=0.0)).state == "running"
    done = bulk_pb2.BulkOperation(id=JOB.bytes, state=bulk_pb2.BULK_DONE)
    seen: list[str] = []
    assert (await of(Bulk, Server(running, done)).wait(JOB, every=0, progress=lambda one: seen.append(one.state))).over
    assert seen == ["running", "done"]


async def test_one_id_of_several_that_were_not_all_listed_is_ambiguous() -> None:
    answer = admin_pb2.FindIdsResponse(ids=[JOB.bytes])
    assert await find_ids.full_id(cast("Any", Server(answer)), "job", "01890000") == JOB
    answer.more = True
    with pytest.raises(AmbiguousId):
        await find_ids.full_id(cast("Any", Server(answer)), "job", "01890000")


async def test_only_the_last_event_of_an_answer_has_its_position_and_reading_goes_on_there() -> None:
    pair = [events_pb2.StreamEvent(id=f"e{n}", kind="job.completed") for n in (1, 2)]
    server = Server(events_pb2.ReadEventsResponse(events=pair, last_event_id="p2"))
    found = []
    async for one in read_events(cast("Any", server), topics=(), job_ids=(), kinds=(), batch=None, after="p0"):
        found.append(one)
        if len(found) == 3:
            break
    assert [cast("Any", one).position for one in found] == ["", "p2", ""]
    assert [request.last_event_id for request in server.requests] == ["p0", "p2"]


async def test_retention_is_sent_in_milliseconds() -> None:
    server = Server(
        admin_pb2.RetentionRules(**dict.fromkeys(("completed_ms", "dead_ms", "cancelled_ms", "audit_ms"), 86_400_000))
    )
    rules = await of(RetentionAdmin, server).set(completed=timedelta(days=1))
    assert server.requests[0].rules.completed_ms == 86_400_000
    assert rules.completed == timedelta(days=1)


async def test_an_update_of_a_webhook_names_what_it_changes_and_nothing_else() -> None:
    server = Server(webhooks_pb2.Webhook(id=JOB.bytes))
    await of(WebhooksAdmin, server).update(f"msg_{JOB.hex}", enabled=False, version=3)
    (request,) = server.requests
    assert (request.id, request.disabled, request.expected_version) == (JOB.bytes, True, 3)
    assert not request.HasField("url")
    await of(WebhooksAdmin, server).update(JOB, enabled=True)
    assert server.requests[1].HasField("disabled")
    assert server.requests[1].disabled is False


@pytest.mark.parametrize("method", [jobs.REDRIVE, keys.CREATE, keys.ROTATE, hooks.CREATE, hooks.ROTATE])
def test_a_call_that_would_take_effect_twice_is_not_repeated(method: Any) -> None:
    assert not method.repeatable


@pytest.mark.parametrize("method", [jobs.CANCEL, bulk.START, schedules.PUT, schedules.TRIGGER])
def test_a_call_that_takes_effect_once_however_often_it_arrives_is_repeated(method: Any) -> None:
    assert method.repeatable
