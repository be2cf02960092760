"""Answers made from records, and records made from messages: which field is which, and what is done to it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from uuid import UUID

import msgspec
import pytest

from headgate.api.fields import Answers
from headgate.sdk.records import record
from headgate.wire import admin_pb2, bulk_pb2, jobs_pb2, webhooks_pb2

AT = datetime(2026, 11, 16, 12, 4, tzinfo=UTC)
AT_US = 1_794_830_640_000_000
ID = UUID(int=5)


class Colour(IntEnum):
    RED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    id: UUID = ID
    created_at: datetime = AT
    since: datetime | None = None
    at: datetime = AT
    pause: timedelta = timedelta(microseconds=1_001)
    took_ms: int = 7
    colour: Colour = Colour.RED
    keys: tuple[str, ...] = ("a",)
    height: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    wood: str = "oak"
    colour: Colour = Colour.RED


class DoorOut(msgspec.Struct, kw_only=True, omit_defaults=True):
    id: str
    created_us: int
    since_us: int = 0
    at_us: int
    pause_ms: int
    took_ms: int
    colour: str
    keys: list[str]
    height: int = -1
    wood: str
    open: bool


answers = Answers(
    lambda kind: kind.__struct_fields__, {UUID: str, tuple: list, IntEnum: lambda one: f"colour {int(one)}"}
)


def test_a_field_of_an_answer_is_that_of_a_record_with_its_name_and_unit() -> None:
    made = answers.of(DoorOut, Door(), Frame(), open=True)
    assert msgspec.to_builtins(made) == {
        "id": str(ID),
        "created_us": AT_US,
        "at_us": AT_US,
        "pause_ms": 2,  # rounded up
        "took_ms": 7,
        "colour": "colour 1",
        "keys": ["a"],
        "wood": "oak",
        "open": True,
    }
    assert (made.since_us, made.height) == (0, -1)  # None is left out


def test_what_the_adapter_gives_replaces_a_field_of_the_record() -> None:
    assert answers.of(DoorOut, Door(), Frame(), open=False, pause_ms=1, wood="fir").pause_ms == 1


def test_a_field_that_no_record_has_is_an_error() -> None:
    with pytest.raises(TypeError, match="nothing has the field wood"):
        answers.of(DoorOut, Door(), open=True)


# --- records of messages ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    id: UUID
    batch_id: UUID | None
    state: str
    created_at: datetime | None
    run_at: datetime | None
    finished_at: datetime | None
    tags: tuple[str, ...]
    headers: dict[str, str]
    attempt: int
    schedule: str


def test_a_field_of_a_record_is_that_of_the_message_with_its_name_and_unit() -> None:
    message = jobs_pb2.JobInfo(
        id=ID.bytes,
        state=jobs_pb2.STATE_DEAD,
        created_us=AT_US,
        run_at_us=AT_US,
        tags=["a"],
        headers={"k": "v"},
        attempt=3,
    )
    assert record(Seen, message, schedule="nightly") == Seen(
        id=ID,
        batch_id=None,
        state="dead",
        created_at=AT,
        run_at=AT,
        finished_at=None,
        tags=("a",),
        headers={"k": "v"},
        attempt=3,
        schedule="nightly",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    priority: int | None
    matched: int
    min_interval: timedelta


def test_an_optional_field_that_is_not_set_is_none_and_a_span_has_its_unit() -> None:
    operation, webhook = bulk_pb2.BulkOperation(matched=2), webhooks_pb2.WebhookSpec(min_interval_ms=1_500)
    found = record(Plan, bulk_pb2.BulkPlan(), operation, webhook)
    assert found == Plan(priority=None, matched=2, min_interval=timedelta(seconds=1.5))
    assert record(Plan, bulk_pb2.BulkPlan(priority=0), operation, webhook).priority == 0


def test_a_field_that_no_message_has_in_that_form_is_an_error() -> None:
    with pytest.raises(TypeError, match="no message has the field matched"):
        record(Plan, bulk_pb2.BulkPlan(), webhooks_pb2.WebhookSpec())
    with pytest.raises(TypeError, match="no message has the field stop"):  # a message of its own
        record(Stopped, admin_pb2.WorkerInfo())


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    stop: object
