"""Wakes: events that say where jobs may be claimable, and how they are written in a NOTIFY.

A wake says where to look sooner, never what is there: the rows decide (ADR 12). Every user of the database can send a
notification, so `decode` ignores what it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

EVENTS_MAX: Final = 500
"""Events in one notification: PostgreSQL takes 8,000 bytes."""
_CONTROL: Final = "control"
_DUE: Final = "due"
_RETURNED, _SUBMITTED = "r", "s"
_DIGITS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class TopicReady:
    """A topic has new claimable jobs, or a limit lets more of its jobs start."""

    topic_no: int


@dataclass(frozen=True, slots=True)
class JobReturned:
    """Jobs of a topic are claimable at another rank, perhaps before those that were claimed last."""

    topic_no: int


@dataclass(frozen=True, slots=True)
class ControlChanged:
    """What is paused, quiet or cancelled has changed."""


@dataclass(frozen=True, slots=True)
class TopicSubmitted:
    """An application has committed jobs of a topic. Transactions that commit at the same time may send none."""

    topic_no: int


@dataclass(frozen=True, slots=True)
class JobsDue:
    """An application has submitted jobs that fall due before the next tick, or that may be unblocked already.

    Transactions that commit at the same time may send none.
    """


@dataclass(frozen=True, slots=True)
class LimitOpened:
    """A limit lets more jobs of a topic start; `waited`: it was closed until now. Not sent to other instances."""

    topic_no: int
    waited: bool


Wake: TypeAlias = TopicReady | JobReturned | ControlChanged | TopicSubmitted | JobsDue
"""What instances tell each other, and transactions of applications tell instances (functions/wake_arrivals_v1.sql)."""


def encode(wakes: Iterable[Wake]) -> str:
    """The text of a notification: `12` for a ready topic, `r12` for returned jobs, `s12` for submitted ones; `control`,
    `due`."""
    texts = set()
    for wake in wakes:
        match wake:
            case TopicReady(topic_no):
                texts.add(str(topic_no))
            case JobReturned(topic_no):
                texts.add(f"{_RETURNED}{topic_no}")
            case TopicSubmitted(topic_no):
                texts.add(f"{_SUBMITTED}{topic_no}")
            case ControlChanged():
                texts.add(_CONTROL)
            case JobsDue():
                texts.add(_DUE)
    # Control changes first: they are the ones whose effect must not wait for a tick.
    return ",".join(sorted(texts, key=lambda text: (text != _CONTROL, text))[:EVENTS_MAX])


_KINDS: Final[Mapping[str, type[TopicReady | JobReturned | TopicSubmitted]]] = {
    "": TopicReady,
    _RETURNED: JobReturned,
    _SUBMITTED: TopicSubmitted,
}


def decode(payload: str) -> list[Wake]:
    """The events of a notification, without what is none."""
    wakes: list[Wake] = []
    for text in payload.split(",", EVENTS_MAX)[:EVENTS_MAX]:
        if text == _CONTROL:
            wakes.append(ControlChanged())
            continue
        if text == _DUE:
            wakes.append(JobsDue())
            continue
        kind = text[:1] if text.startswith((_RETURNED, _SUBMITTED)) else ""
        digits = text[len(kind) :]
        if len(digits) <= _DIGITS_MAX and digits.isascii() and digits.isdecimal() and (topic_no := int(digits)):
            wakes.append(_KINDS[kind](topic_no))
    return wakes
