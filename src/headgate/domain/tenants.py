"""Quotas of tenants: how much one tenant may submit, keep and have open, so that it leaves capacity to others (ADR 47).

A quota that is not set for a tenant has the default of the installation. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from headgate.domain.errors import HeadgateError, InvalidInput, QuotaExceeded, Refused, TooLarge
from headgate.domain.limits import PAYLOAD_MAX_BYTES, RETRY_POLICIES_MAX, TOPICS_MAX
from headgate.domain.rate_limits import RateClass, RateLimited, parse_rate, rate_text
from headgate.domain.topic_limits import BACKLOG_MAX, COUNT_MAX, Rate
from headgate.domain.units import size_text
from headgate.domain.validation import check_integer, shown

QUOTAS: Final = {
    "submit_rate": "jobs submitted over time, on each instance",
    "max_backlog": "jobs that wait, over all topics",
    "max_stored_bytes": "bytes of payloads and results that are kept",
    "max_payload_bytes": "bytes of the payload of one job",
    "max_sessions": "worker sessions that are open",
    "max_schedules": "schedules",
    "max_webhooks": "webhooks",
    "max_topics": "topics",
    "max_policies": "different retry policies",
}
"""Their names, and what each counts."""
QUOTA_KINDS: Final = {1: "max_backlog", 2: "max_stored_bytes", 3: "max_payload_bytes"}
"""As over_quota_v1 numbers them."""
IN_BYTES: Final = frozenset({"max_stored_bytes", "max_payload_bytes"})
HIGHEST: Final = {"max_backlog": BACKLOG_MAX, "max_stored_bytes": 1 << 60, "max_payload_bytes": PAYLOAD_MAX_BYTES}
BUILT_IN: Final = {"max_topics": TOPICS_MAX, "max_policies": RETRY_POLICIES_MAX, "max_webhooks": 100}
"""Defaults of an installation that has set none; the other quotas have no limit. Every flush of outcomes compares its
topics with those of all webhooks of its tenant."""
Quota = int | Rate | None


def checked_quotas(given: Mapping[str, object]) -> dict[str, Quota]:
    """Quotas by name; None: none of its own, so the default counts. Raises InvalidInput."""
    found: dict[str, Quota] = {}
    for name, value in given.items():
        if name not in QUOTAS:
            raise InvalidInput("quotas", f"has no quota {shown(name)}", hint=f"there are {', '.join(QUOTAS)}")
        if value is None:
            found[name] = None
        elif name == "submit_rate":
            found[name] = value if isinstance(value, Rate) else parse_rate(value, field=name)
        else:
            found[name] = check_integer(value, field=name, low=0, high=HIGHEST.get(name, COUNT_MAX))
    return found


def changes_of(given: Mapping[str, object], release: Collection[str]) -> dict[str, object]:
    """Quotas to set and to release, as one mapping. Raises InvalidInput for one that is in both."""
    for name in release:
        if name in given:
            raise InvalidInput("release", f"names {name}, which is set as well", hint="leave one of them out")
    return {**given, **dict.fromkeys(release)}


def quota_text(name: str, value: Quota) -> str:
    """A quota for people."""
    if value is None:
        return "no limit"
    if isinstance(value, Rate):
        return rate_text(value)
    return size_text(value) if name in IN_BYTES else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantView:
    """A tenant: the quotas that count, which of them are its own, and what it uses."""

    name: str
    quotas: Mapping[str, Quota] = field(hash=False)
    own: frozenset[str]
    used: Mapping[str, int] = field(hash=False)
    """By quota; without those that are not known. Counts of jobs come from the rollups."""
    measured_at: datetime | None = None
    """When stored bytes were measured last."""
    created_at: datetime | None = None


class TenantQuotaExceeded(QuotaExceeded):
    """The tenant has as much as its quota permits; nothing was written."""

    def __init__(self, name: str, *, limit: int, current: int) -> None:
        todo = {
            "max_backlog": "submit again when jobs have run",
            "max_stored_bytes": "discard jobs, or wait until the retention has removed some",
            "max_sessions": "close another worker",
        }.get(name, "delete one that is not used")
        Refused.__init__(
            self,
            f"the tenant has {quota_text(name, current)} of {quota_text(name, limit)} ({name}: {QUOTAS[name]}); {todo},"
            " or have an administrator raise it with `headgate tenant set`",
        )
        self.quota, self.column, self.current = limit, name, current


def exceeded(name: str, *, limit: int, current: int) -> HeadgateError:
    """Why a tenant may not have this; of a payload, it is the size of that one."""
    if name == "max_payload_bytes":
        hint = "store the data elsewhere and send a reference, or have an administrator raise max_payload_bytes of the "
        return TooLarge("payload", size=current, limit=limit, hint=hint + "tenant with `headgate tenant set`")
    return TenantQuotaExceeded(name, limit=limit, current=current)


def check_count(name: str, count: int, limit: int | None) -> None:
    """Raise TenantQuotaExceeded if a tenant that has so many may not have one more."""
    if limit is not None and count >= limit:
        raise TenantQuotaExceeded(name, limit=limit, current=count)


class TenantRateLimited(RateLimited):
    """The tenant has submitted as many jobs as its quota permits; nothing of this was taken."""

    def __init__(self, tenant: str, *, rate: Rate, retry_after_ms: int) -> None:
        HeadgateError.__init__(
            self,
            f"tenant {tenant} is limited to {rate_text(rate)} for submits (submit_rate); nothing of this was taken: "
            f"send it again in {retry_after_ms} ms, or have an administrator raise it with `headgate tenant set`",
        )
        self.kind, self.rate, self.retry_after_ms = RateClass.SUBMIT, rate, retry_after_ms
