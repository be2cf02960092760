"""The form of a schedule: from its fields to a spec and back, and its timing in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, assert_never
from zoneinfo import ZoneInfo

from headgate.control.payload_edits import parsed
from headgate.domain.cron import check_zone, parse_cron
from headgate.domain.cron_words import in_words
from headgate.domain.errors import InvalidInput
from headgate.domain.redaction import MASK, Redaction, restored
from headgate.domain.schedules import (
    After,
    At,
    Cron,
    Every,
    ScheduleSpec,
    Timing,
    parse_catch_up,
    parse_overlap,
    parse_when_full,
)
from headgate.domain.timestamps import EPOCH
from headgate.domain.units import duration, exact
from headgate.domain.validation import shown
from headgate.web.forms import Form, utc_time

KINDS: Final = (
    ("cron", "by a cron expression"),
    ("every", "at an interval"),
    ("at", "once, at a time"),
    ("after", "once, after a delay"),
)
OVERLAPS: Final = (
    ("allow", "allow: run beside the earlier job"),
    ("skip", "skip: leave this occurrence out"),
    ("replace", "replace: cancel the earlier job"),
)
CATCH_UPS: Final = (
    ("one", "one: one job for all of it"),
    ("all", "all: a job for each"),
    ("none", "none: leave it out"),
)
WHEN_FULL: Final = (("wait", "wait until it has capacity"), ("skip", "skip this occurrence"))
_LOCAL: Final = "%Y-%m-%dT%H:%M"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A timing in words, and its next occurrences."""

    words: str
    zone: str
    upcoming: list[datetime]


def timing_of(form: Form) -> Timing:
    """When. Raises InvalidInput naming the field."""
    match form.text("kind") or "cron":
        case "cron":
            return Cron(expression=form.required("cron"), zone=form.text("zone") or "UTC")
        case "every":
            return Every(interval=duration(form.required("every"), field="every"), anchor=form.time("anchor") or EPOCH)
        case "at":
            return At(at=utc_time(form.required("at"), field="at"))
        case "after":
            return After(delay=duration(form.required("after"), field="after"))
        case other:
            raise InvalidInput("kind", f"must be one of cron, every, at, after, got {shown(other)}")


def spec_of(form: Form, before: ScheduleSpec | None, redaction: Redaction) -> ScheduleSpec:
    """What the form says; headers, tags, retry policy and source of an existing schedule stay."""
    timing = timing_of(form)
    given = {
        "topic": form.required("topic"),
        "timing": timing,
        "payload": _payload(form, before, redaction),
        "priority": form.integer("priority"),
        "max_attempts": form.integer("max_attempts"),
        "overlap": parse_overlap(form.text("overlap") or "allow"),
        "catch_up": parse_catch_up(form.text("catch_up") or "one"),
        "when_full": parse_when_full(form.text("when_full") or "wait"),
        "ends_at": form.time("ends_at"),
    }
    return ScheduleSpec(**given) if before is None else replace(before, **given)  # type: ignore[arg-type]


def fields_of(spec: ScheduleSpec | None, redaction: Redaction) -> dict[str, str]:
    """The values of the form for a schedule; None: for a new one."""
    fields = dict.fromkeys(("cron", "every", "at", "after", "anchor", "priority", "max_attempts", "ends_at"), "")
    if spec is None:
        return fields | {
            "kind": "cron",
            "cron": "0 * * * *",
            "zone": "UTC",
            "topic": "",
            "payload": "{}",
            "overlap": "allow",
            "catch_up": "one",
            "when_full": "wait",
        }
    return fields | {
        "zone": "UTC",
        "topic": spec.topic,
        "payload": payload_text(spec.payload, redaction) or "",
        "priority": _number(spec.priority),
        "max_attempts": _number(spec.max_attempts),
        "overlap": spec.overlap.value,
        "catch_up": spec.catch_up.value,
        "when_full": spec.when_full.value,
        "ends_at": _local(spec.ends_at),
        **_timing_fields(spec.timing),
    }


def words_of(timing: Timing) -> str:
    """A timing in words."""
    match timing:
        case At(at=at):
            return f"once, on {at:%Y-%m-%d at %H:%M:%S} UTC"
        case After(delay=delay, at=at):
            when = "" if at is None else f", on {at:%Y-%m-%d at %H:%M:%S} UTC"
            return f"once, {exact(delay)} after it was stored{when}"
        case Every(interval=interval):
            return f"every {exact(interval)}"
        case Cron(expression=expression, zone=zone):
            return f"{in_words(parse_cron(expression))} ({zone})"
        case _:
            assert_never(timing)


def zone_of(timing: Timing) -> ZoneInfo:
    """The zone whose clocks count; UTC where none does."""
    return check_zone(timing.zone if isinstance(timing, Cron) else "UTC")


def payload_text(payload: bytes, redaction: Redaction) -> str | None:
    """A payload for a text area, with secrets masked; None: it is not JSON, and cannot be edited here."""
    if not payload:
        return ""
    try:
        return json.dumps(redaction.masked(json.loads(payload.decode())), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _timing_fields(timing: Timing) -> Mapping[str, str]:
    match timing:
        case At(at=at):
            return {"kind": "at", "at": _local(at)}
        case After(delay=delay):
            return {"kind": "after", "after": exact(delay)}
        case Every(interval=interval, anchor=anchor):
            return {"kind": "every", "every": exact(interval), "anchor": "" if anchor == EPOCH else _local(anchor)}
        case Cron(expression=expression, zone=zone):
            return {"kind": "cron", "cron": expression, "zone": zone}
        case _:
            assert_never(timing)


def _payload(form: Form, before: ScheduleSpec | None, redaction: Redaction) -> bytes:
    text = form.raw("payload").strip()
    if "payload" not in form and before is not None:
        return before.payload
    if not text:
        return b""
    edited = parsed(text)
    # As it was: a payload that is only shown with line breaks is not changed by saving the form.
    if before is not None and text == (payload_text(before.payload, redaction) or "").strip():
        return before.payload
    if MASK in text:
        stored = json.loads(before.payload) if before is not None and before.payload else None
        return json.dumps(restored(edited, stored), ensure_ascii=False).encode()
    return text.encode()


def _local(at: datetime | None) -> str:
    if at is None:
        return ""
    whole = at.astimezone(UTC)
    return whole.strftime(_LOCAL if not whole.second and not whole.microsecond else "%Y-%m-%dT%H:%M:%S")


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
