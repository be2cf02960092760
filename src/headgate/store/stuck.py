"""Jobs that cannot be promoted or reaped: each is named in the log once, and counted for as long as it is so."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final, TypeAlias
from uuid import UUID

log = logging.getLogger("headgate.store")
MOST: Final = 1_000
LOCKED: Final = "55P03"

Problem: TypeAlias = tuple[int | None, UUID | str, str]
"""Tenant and job, or a place in the table; and why: an SQLSTATE and a text."""


class Stuck:
    """The stuck jobs that one instance knows, by what it tried: `promote`, `reap`, or these page by page."""

    def __init__(self) -> None:
        self._now: dict[str, dict[tuple[int | None, UUID | str], str]] = {}
        self._named: set[object] = set()

    def counts(self) -> dict[str, int]:
        """How many, by tenant number; 0: places in the table whose tenant is not known."""
        keys = {key for found in self._now.values() for key in found}
        return {str(owner): count for owner, count in sorted(Counter(owner or 0 for owner, _ in keys).items())}

    def found(self, by: str, problems: Iterable[Problem]) -> None:
        """What was tried has met these, and no others. Locks are left out: they pass."""
        now = {(owner, what): why for owner, what, why in problems if not why.startswith(LOCKED)}
        if not now:
            self._now.pop(by, None)
            return
        self._now[by] = now
        for key, reason in now.items():
            if (key, reason) not in self._named:
                self._name((key, reason))
                log.error("job_stuck tenant=%s job_id=%s error=%s", *key, reason)

    def over(self, by: str) -> None:
        """What was tried has met no problem, and needs no other way."""
        if self._now:
            self._now.pop(by, None)
            self._now.pop(f"{by} pages", None)

    def failed(self, what: str, error: Exception) -> None:
        """Something could not be done at all; the slow way is next."""
        if (what, str(error)) not in self._named:
            self._name((what, str(error)))
            log.warning("tick_part_failed part=%s error=%s", what, error)

    def _name(self, what: object) -> None:
        if len(self._named) >= MOST:
            self._named.clear()
        self._named.add(what)
