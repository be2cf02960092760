"""When a failed job is tried again: whole milliseconds, the same in Python and in SQL to the last digit.

Policies are rows, so that any instance can apply any job's policy inside the settling flush. `delay_ms` is the text the
SQL repeats: integers only, shifts instead of divisions, no product past 2^63 (`limits.RETRY_CAP_MAX_MS`).
Jitter is derived from the job and the attempt rather than drawn: the verdict stays a pure function, a repeated
outcome gets the same answer, and jobs that failed together are still spread out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from hashlib import md5
from typing import Final, assert_never
from uuid import UUID

from headgate.domain import limits
from headgate.domain.errors import InvalidInput, TooLarge
from headgate.domain.validation import MILLISECOND, check_integer, check_span, shown, to_ms

JITTER_BITS: Final = 20
JITTER_MAX: Final = 2**JITTER_BITS - 1
_MAX_DOUBLINGS: Final = 31  # past that every base has met its cap, and 2^31 times the largest base still fits a bigint
_CAP_DEFAULT: Final = limits.RETRY_CAP_DEFAULT_MS * MILLISECOND


class BackoffKind(IntEnum):
    """The shape of a policy; the number is stored."""

    QUADRATIC = 0
    FIXED = 1
    LINEAR = 2
    EXPONENTIAL = 3
    EXPONENTIAL_EQUAL_JITTER = 4
    EXPONENTIAL_FULL_JITTER = 5
    EXPLICIT = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long to wait after the n-th failed attempt; by default n² seconds (1, 4, 9 …), a day at most."""

    kind: BackoffKind = BackoffKind.QUADRATIC
    base_ms: int = limits.RETRY_BASE_DEFAULT_MS
    cap_ms: int = limits.RETRY_CAP_DEFAULT_MS
    delays_ms: tuple[int, ...] = ()  # EXPLICIT only; base and cap do not touch it

    def __post_init__(self) -> None:
        if not isinstance(self.kind, BackoffKind):
            raise InvalidInput("policy.kind", f"must be a BackoffKind, got {shown(self.kind)}")
        check_integer(self.base_ms, field="policy.base_ms", low=limits.RETRY_BASE_MIN_MS, high=limits.RETRY_CAP_MAX_MS)
        check_integer(self.cap_ms, field="policy.cap_ms", low=self.base_ms, high=limits.RETRY_CAP_MAX_MS)
        if not isinstance(self.delays_ms, tuple):
            raise InvalidInput("policy.delays_ms", f"must be a tuple of int, got {shown(self.delays_ms)}")
        if self.kind is not BackoffKind.EXPLICIT:
            if self.delays_ms:
                raise InvalidInput("policy.delays_ms", f"must be empty for {self.kind.name.lower()} backoff")
            return
        if not self.delays_ms:
            raise InvalidInput("policy.delays_ms", f"must list 1 to {limits.RETRY_DELAYS_MAX} delays, got none")
        if len(self.delays_ms) > limits.RETRY_DELAYS_MAX:
            raise TooLarge("policy.delays_ms", size=len(self.delays_ms), limit=limits.RETRY_DELAYS_MAX, unit="delays")
        for at, delay in enumerate(self.delays_ms):
            check_integer(delay, field=f"policy.delays_ms[{at}]", low=0, high=limits.RETRY_CAP_MAX_MS)

    @classmethod
    def quadratic(cls, base: timedelta = timedelta(seconds=1), *, cap: timedelta = _CAP_DEFAULT) -> RetryPolicy:
        """base × attempt²."""
        return cls._of(BackoffKind.QUADRATIC, base, cap)

    @classmethod
    def fixed(cls, delay: timedelta) -> RetryPolicy:
        """The same wait every time."""
        return cls._of(BackoffKind.FIXED, delay)

    @classmethod
    def linear(cls, base: timedelta, *, cap: timedelta = _CAP_DEFAULT) -> RetryPolicy:
        """base × attempt."""
        return cls._of(BackoffKind.LINEAR, base, cap)

    @classmethod
    def exponential(cls, base: timedelta, *, cap: timedelta = _CAP_DEFAULT) -> RetryPolicy:
        """base, then twice as long each time."""
        return cls._of(BackoffKind.EXPONENTIAL, base, cap)

    @classmethod
    def exponential_equal_jitter(cls, base: timedelta, *, cap: timedelta = _CAP_DEFAULT) -> RetryPolicy:
        """Between half of the exponential wait and all of it."""
        return cls._of(BackoffKind.EXPONENTIAL_EQUAL_JITTER, base, cap)

    @classmethod
    def exponential_full_jitter(cls, base: timedelta, *, cap: timedelta = _CAP_DEFAULT) -> RetryPolicy:
        """Between nothing and the exponential wait: the widest spread, and sometimes no wait at all."""
        return cls._of(BackoffKind.EXPONENTIAL_FULL_JITTER, base, cap)

    @classmethod
    def explicit(cls, *delays: timedelta) -> RetryPolicy:
        """These waits in turn; the last one repeats."""
        longest = limits.RETRY_CAP_MAX_MS * MILLISECOND
        checked = [
            check_span(delay, field=f"policy.delays_ms[{at}]", low=timedelta(0), high=longest)
            for at, delay in enumerate(delays)
        ]
        return cls(kind=BackoffKind.EXPLICIT, delays_ms=tuple(map(to_ms, checked)))

    @classmethod
    def _of(cls, kind: BackoffKind, base: timedelta, cap: timedelta | None = None) -> RetryPolicy:
        longest = limits.RETRY_CAP_MAX_MS * MILLISECOND
        base = check_span(base, field="policy.base_ms", low=limits.RETRY_BASE_MIN_MS * MILLISECOND, high=longest)
        cap = max(base, _CAP_DEFAULT) if cap is None else cap
        cap = check_span(cap, field="policy.cap_ms", low=base, high=longest)
        return cls(kind=kind, base_ms=to_ms(base), cap_ms=to_ms(cap))

    def delay_ms(self, attempt: int, *, jitter: int) -> int:
        """The wait after `attempt` failed (1 is the first); `jitter` is 0..2^20−1 and matters to two kinds only.

        Full jitter may answer 0, which means at once: raising it to 1 ms would add a promotion and spread nothing.
        """
        check_integer(attempt, field="attempt", low=1, high=limits.MAX_ATTEMPTS_LIMIT)
        check_integer(jitter, field="jitter", low=0, high=JITTER_MAX)
        match self.kind:
            case BackoffKind.QUADRATIC:
                return min(self.cap_ms, self.base_ms * attempt * attempt)
            case BackoffKind.FIXED:
                return min(self.cap_ms, self.base_ms)
            case BackoffKind.LINEAR:
                return min(self.cap_ms, self.base_ms * attempt)
            case BackoffKind.EXPONENTIAL:
                return self._doubled(attempt)
            case BackoffKind.EXPONENTIAL_EQUAL_JITTER:
                full = self._doubled(attempt)
                return full - (full * jitter >> (JITTER_BITS + 1))
            case BackoffKind.EXPONENTIAL_FULL_JITTER:
                return self._doubled(attempt) * jitter >> JITTER_BITS
            case BackoffKind.EXPLICIT:
                return self.delays_ms[min(attempt, len(self.delays_ms)) - 1]
            case _:
                assert_never(self.kind)

    def _doubled(self, attempt: int) -> int:
        return min(self.cap_ms, self.base_ms << min(attempt - 1, _MAX_DOUBLINGS))


def policy_from(kind: int, base_ms: int, cap_ms: int, delays_ms: Iterable[int]) -> RetryPolicy:
    """A policy from the fields of a row or a message, where 0 means the default. Raises ValueError for another kind."""
    return RetryPolicy(
        kind=BackoffKind(kind),
        base_ms=base_ms or limits.RETRY_BASE_DEFAULT_MS,
        cap_ms=cap_ms or limits.RETRY_CAP_DEFAULT_MS,
        delays_ms=tuple(delays_ms),
    )


def jitter_of(job_id: UUID, attempt: int) -> int:
    """20 bits that differ from job to job and from attempt to attempt, and never change.

    md5 because PostgreSQL has it built in: `('x' || left(md5(id::text || ':' || attempt), 5))::bit(20)::int`.
    """
    return int(md5(f"{job_id}:{attempt}".encode(), usedforsecurity=False).hexdigest()[:5], 16)
