"""Answers made from records, and records made from messages: which field is which, and what is done to it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from uuid import UUID

import msgspec
import pytest

from headgate.api.fields import Answers

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
