"""Rate limits: each credential has a token bucket for each class of requests, on this instance. See ADR 44.

A refusal takes nothing and tells how long to wait. Without limits a check is one comparison.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from headgate.domain.identity import Identity
from headgate.domain.rate_limits import Bucket, RateClass, RateLimited, Rates, milliseconds

BUCKETS_MAX: Final = 20_000
"""Buckets in memory; beyond that, those that are full are dropped: a new one is full as well."""


class RateLimits:
    """The buckets of one instance."""

    def __init__(self, default: Rates | None = None, *, now: Callable[[], float] = time.monotonic) -> None:
        """`default` is for credentials that have no limits of their own."""
        self._default, self._now = default, now
        self._buckets: dict[tuple[str, RateClass], Bucket] = {}
        self.refused = 0

    def take(self, caller: Identity, kind: RateClass, count: int = 1) -> None:
        """Count a request, or so many jobs of it. Raises RateLimited: then nothing is counted."""
        rates = caller.rates or self._default
        if rates is None:
            return
        rate = getattr(rates, kind)
        if rate is None:
            return
        now, place = self._now(), (caller.credential, kind)
        bucket = self._buckets.get(place)
        if bucket is None or bucket.rate != rate:
            if len(self._buckets) >= BUCKETS_MAX:
                self._buckets = {name: one for name, one in self._buckets.items() if not one.is_full(now)}
            bucket = self._buckets[place] = Bucket(rate, now)
        wait = bucket.take(count, now)
        if wait:
            self.refused += 1
            raise RateLimited(kind, caller.subject, rate=rate, retry_after_ms=milliseconds(wait))

    def give_back(self, caller: Identity, kind: RateClass, count: int) -> None:
        """Undo a `take` of something that was refused for another reason."""
        bucket = self._buckets.get((caller.credential, kind))
        if bucket is not None:
            bucket.give_back(count)

    @property
    def buckets(self) -> int:
        """How many are in memory."""
        return len(self._buckets)
