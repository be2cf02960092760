"""Texts without a UTF-8 form in calls of operators: the SDK's own error, with the field, before anything is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headgate.domain.errors import InvalidInput
from headgate.sdk import Headgate
from headgate.sdk.admin import Admin

BAD = "caf\udce9"  # what a file's name in Latin-1 looks like in Python
JOB = "01890a5d-ac96-774b-bcce-b302099a8057"
CALLS: dict[str, Callable[[Admin], Awaitable[object]]] = {
    "topic of pause": lambda admin: admin.pause(topic=BAD),
    "reason of pause": lambda admin: admin.pause(everything=True, reason=BAD),
    "reason of resume": lambda admin: admin.resume(tenant=True, reason=BAD),
    "reason of cancel": lambda admin: admin.jobs.cancel(JOB, reason=BAD),
    "reason of redrive": lambda admin: admin.jobs.redrive(JOB, reason=BAD),
    "reason of discard": lambda admin: admin.jobs.discard(JOB, reason=BAD),
    "reason of reprioritise": lambda admin: admin.jobs.reprioritise(JOB, 1, reason=BAD),
    "reason of move": lambda admin: admin.jobs.move(JOB, "mail", reason=BAD),
    "topic of move": lambda admin: admin.jobs.move(JOB, BAD),
    "cursor of a page": lambda admin: admin.jobs_matching("").page(cursor=BAD),
    "topic of dead letters": lambda admin: admin.dead.groups(BAD),
    "reason of an operation": lambda admin: admin.bulk.start("cancel", "topic:mail", reason=BAD),
    "topic of an operation": lambda admin: admin.bulk.start("move", "topic:mail", topic=BAD),
    "reason of an operation's end": lambda admin: admin.bulk.cancel(JOB, reason=BAD),
    "name of a schedule": lambda admin: admin.schedules.get(BAD),
    "name of a schedule that is put": lambda admin: admin.schedules.put(BAD, "mail", every=60),
    "name of a schedule that is deleted": lambda admin: admin.schedules.delete(BAD),
    "reason of a schedule's end": lambda admin: admin.schedules.delete("nightly", reason=BAD),
    "reason of a schedule's pause": lambda admin: admin.schedules.pause("nightly", reason=BAD),
    "reason of a schedule's resume": lambda admin: admin.schedules.resume("nightly", reason=BAD),
    "reason of a trigger": lambda admin: admin.schedules.trigger("nightly", reason=BAD),
    "name of next": lambda admin: admin.schedules.next(BAD),
    "name of a schedule's jobs": lambda admin: admin.schedules.jobs(BAD),
    "source of schedules": lambda admin: admin.schedules.list(source=BAD),
    "zone of a preview": lambda admin: admin.schedules.preview(cron="* * * * *", zone=BAD),
    "topic by its name": lambda admin: admin.topics.get(BAD),
    "reason of a topic's change": lambda admin: admin.topics.set("mail", reason=BAD, max_running=1),
    "worker of quiet": lambda admin: admin.workers.quiet(BAD),
    "worker of stop": lambda admin: admin.workers.stop(BAD),
    "reason of stop": lambda admin: admin.workers.stop("w", reason=BAD),
    "reason of quiet": lambda admin: admin.workers.quiet("w", reason=BAD),
    "reason of resuming a worker": lambda admin: admin.workers.resume("w", reason=BAD),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_lone_surrogate_is_bad_input_that_names_its_field(call: str) -> None:
    admin = Headgate("127.0.0.1:1").admin  # no one listens there: it would be NotConnected
    with pytest.raises(InvalidInput) as caught:
        await CALLS[call](admin)
    assert caught.value.field.startswith(call.split()[0])
    assert str(caught.value).isprintable(), "the error itself can be printed anywhere"


def test_a_filter_with_a_lone_surrogate_is_refused_by_its_place() -> None:
    with pytest.raises(InvalidInput, match="control character, U\\+DCE9"):
        Headgate("127.0.0.1:1").admin.jobs_matching(f"topic:{BAD}")
