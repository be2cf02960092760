"""Rate limits of credentials: how many requests and jobs one credential may send, by class. See ADR 44.

A limit is a token bucket. A request that needs more tokens than the burst is admitted with a full bucket, which then
is in debt: a batch of 10,000 jobs passes a limit of 1,000 a second, and the next one waits ten seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final, Self

from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.domain.topic_limits import Rate
from headgate.domain.units import duration
from headgate.domain.validation import shown

_ROUNDING: Final = 1e-6
"""Who waits exactly as long as it was asked to must not be refused for a rounding error."""
_RATE: Final = re.compile(r"([0-9]{1,18})/([^:]+)(?::([0-9]{1,18}))?")


class RateClass(StrEnum):
    """What a limit counts. Submits count jobs; all others count requests, and a stream of a worker counts once."""

    SUBMIT = "submit"
    WORK = "work"
    READ = "read"
    OPERATE = "operate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The limits of a credential by class; None: no limit."""

    submit: Rate | None = None
    work: Rate | None = None
    read: Rate | None = None
    operate: Rate | None = None

    @classmethod
    def parse(cls, given: Mapping[str, object], *, field: str) -> Self | None:
        """Read `{"submit": "100/1s:200"}`; None if no class has a limit. Raises InvalidInput."""
        unknown = sorted(set(given) - set(RateClass))
        if unknown:
            raise InvalidInput(field, f"has no class {shown(unknown[0])}", hint=f"use one of {', '.join(RateClass)}")
        found = {name: parse_rate(text, field=f"{field}.{name}") for name, text in given.items() if text is not None}
        return cls(**found) if found else None

    def texts(self) -> dict[str, str]:
        """The limits as `parse` reads them, without classes that have none."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: rate_text(rate) for name, rate in given.items() if rate is not None}


def parse_rate(text: object, *, field: str) -> Rate:
    """Parse `100/1s`, or `100/1s:20` with a burst of 20."""
    found = _RATE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidInput(
            field, f"is not a rate, got {shown(text)}", hint="use 100/1s, or 100/1s:20 with a burst of 20"
        )
    return Rate(count=int(found[1]), period=duration(found[2], field=field), burst=int(found[3]) if found[3] else None)


def parse_rates(text: str, *, field: str) -> Rates | None:
    """Parse `submit=100/1s:200,read=10/1s`; None if it is empty."""
    found: dict[str, object] = {}
    for one in filter(None, (part.strip() for part in text.split(","))):
        name, separator, rate = one.partition("=")
        if not separator:
            raise InvalidInput(field, f"must be CLASS=RATE, got {shown(one)}", hint="use submit=100/1s:200,read=10/1s")
        found[name] = rate
    return Rates.parse(found, field=field)


def rate_text(rate: Rate) -> str:
    """A rate as `parse_rate` reads it."""
    burst = "" if rate.burst is None else f":{rate.burst}"
    return f"{rate.count}/{rate.period.total_seconds():g}s{burst}"


class RateLimited(HeadgateError):
    """The credential has sent as much as its limit permits; nothing of this was taken."""

    code = "rate_limited"

    def __init__(self, kind: RateClass, subject: str, *, rate: Rate, retry_after_ms: int) -> None:
        super().__init__(
            f"the token of {subject} is limited to {rate_text(rate)} for {kind}; nothing of this was taken: "
            f"send it again in {retry_after_ms} ms"
        )
        self.kind, self.rate, self.retry_after_ms = kind, rate, retry_after_ms


class Bucket:
    """The tokens of one credential and class."""

    __slots__ = ("_at", "_burst", "_per_second", "_tokens", "rate")

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate = rate
        self._burst = float(rate.burst or rate.count)
        self._per_second = rate.count / rate.period.total_seconds()
        self._tokens, self._at = self._burst, now

    def take(self, count: int, now: float) -> float:
        """Take `count` tokens and return 0; or take none and return the seconds until they can be taken."""
        self._tokens = tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._at = now
        needed = min(float(count), self._burst)
        if tokens >= needed - _ROUNDING:
            self._tokens = tokens - count
            return 0.0
        return (needed - tokens) / self._per_second

    def give_back(self, count: int) -> None:
        """Undo a take."""
        self._tokens = min(self._burst, self._tokens + count)

    def is_full(self, now: float) -> bool:
        """Whether it is as a new one would be."""
        return self._tokens + (now - self._at) * self._per_second >= self._burst


def milliseconds(seconds: float) -> int:
    """A waiting time for a client, never too short."""
    return max(1, math.ceil(seconds * 1000))
