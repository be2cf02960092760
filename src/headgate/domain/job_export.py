"""A job as a line of NDJSON: what `headgate export` writes, the dashboard downloads, and `headgate import` reads.

A payload stands in its line byte for byte, so that importing it submits the same job. Values of secret keys are masked,
unless asked otherwise, and `masked` names them: such a line cannot be imported. `masked` is empty in every other line,
so that a payload that really contains `•••` can be distinguished from a masked one.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self
from uuid import UUID

from headgate.domain.redaction import MASK, Redaction

WAITING: Final = ("scheduled", "retrying", "blocked")
"""States in which the time at which a job is due is a part of what is imported."""
FINISHED: Final = ("completed", "dead", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedJob:
    """One job, as it was read."""

    id: UUID
    topic: str
    state: str
    priority: int
    attempt: int
    max_attempts: int
    created_at: datetime
    run_at: datetime | None
    finished_at: datetime | None
    deadline: datetime | None
    key: str
    unique_key: str
    headers: Mapping[str, str]
    tags: Sequence[str]
    waits_for: Sequence[UUID]
    """Jobs that it depends on and that have not ended as they have to."""
    last_error: str
    payload: bytes
    result: bytes

    @classmethod
    def of(cls, job: object, /, **others: Any) -> Self:
        """From a job as the server or a client has it; `others` has the fields with another name or form there."""
        return cls(**{name: getattr(job, name) for name in cls.__slots__ if name not in others} | others)

    def line(self, redaction: Redaction | None) -> str:
        """It as JSON, without a line end. `redaction` None: nothing is masked."""
        masked: list[str] = []
        headers = dict(self.headers)
        if redaction is not None:
            headers = redaction.masked_headers(self.headers)
            masked += [f"headers.{name}" for name, value in self.headers.items() if headers[name] != value]
        bodies = {
            name: _body(name, raw, redaction, masked)
            for name, raw in (("payload", self.payload), ("result", self.result))
        }
        error = self.last_error if redaction is None else redaction.masked_text(self.last_error)
        due = self.run_at if self.state in WAITING else None
        fields: dict[str, object] = {
            "id": str(self.id),
            "topic": self.topic,
            "state": self.state,
            "priority": self.priority,
            "max_attempts": self.max_attempts,
            "run_at": _time(due),
            "deadline": _time(self.deadline),
            "key": self.key,
            "unique_key": self.unique_key,
            "headers": headers,
            "tags": list(self.tags),
            "depends_on": [str(one) for one in self.waits_for],
            "created_at": _time(self.created_at),
            "finished_at": _time(self.finished_at),
            "attempt": self.attempt or None,
            "last_error": error,
        }
        written = [f'"{name}":{_json(value)}' for name, value in fields.items() if value not in (None, "", {}, [])]
        written += [text for text in bodies.values() if text]
        # Of an error nothing is imported, and of a result neither.
        written.append(f'"masked":{_json([one for one in masked if not one.startswith("result")])}')
        return "{" + ",".join(written) + "}"


def masks_in(value: object, path: str) -> Iterator[str]:
    """Where a JSON value has a mask in place of a value: `payload.card.number`."""
    stack: list[tuple[object, str]] = [(value, path)]
    while stack:
        one, at = stack.pop()
        if isinstance(one, dict):
            stack += [(inner, f"{at}.{key}") for key, inner in reversed(one.items())]
        elif isinstance(one, list):
            stack += [(inner, f"{at}[{index}]") for index, inner in reversed([*enumerate(one)])]
        elif one == MASK:
            yield at


def _body(name: str, raw: bytes, redaction: Redaction | None, masked: list[str]) -> str:
    """A payload or a result as a field: JSON as it is, other bytes in base64, masked where it has to be."""
    if not raw:
        return ""
    try:
        value: object = json.loads(raw)
        text = raw.decode()
    except (ValueError, RecursionError):
        if redaction is not None and redaction.masked_text(plain := raw.decode(errors="replace")) != plain:
            masked.append(name)
            return f'"{name}":{_json(MASK)}'
        return f'"{name}_base64":{_json(b64encode(raw).decode())}'
    if redaction is not None and (shown := redaction.masked(value)) != value:
        masked += masks_in(shown, name)
        return f'"{name}":{_json(shown)}'
    # A line end within it would end the line.
    return f'"{name}_base64":{_json(b64encode(raw).decode())}' if "\n" in text or "\r" in text else f'"{name}":{text}'


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
