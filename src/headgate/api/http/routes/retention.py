"""Retention: how long finished jobs and the audit are kept, and a pass on request."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar.params import JSONBody

from headgate.api.http.codec import Input, Milliseconds, Output, Reason, answers
from headgate.api.http.request import ApiRequest
from headgate.api.http.routing import patch, post
from headgate.domain.retention import RetentionRules, RetentionStatus
from headgate.domain.validation import MILLISECOND

TAG = ["retention"]


class RetentionRulesIn(Input, kw_only=True):
    """Each from 1 day to 10 years; not given: unchanged."""

    completed_ms: Milliseconds | None = None
    dead_ms: Milliseconds | None = None
    cancelled_ms: Milliseconds | None = None
    audit_ms: Milliseconds | None = None


class SetRetention(Input, kw_only=True):
    """What to change."""

    rules: RetentionRulesIn
    reason: Reason = ""


class RetentionRulesOut(msgspec.Struct, kw_only=True):
    """How long finished jobs of all tenants are kept if their topic has no rule."""

    completed_ms: int
    dead_ms: int
    cancelled_ms: int
    audit_ms: int


class RetentionStatusOut(Output, kw_only=True):
    """The rules, and how far their application is."""

    rules: RetentionRulesOut
    oldest_day: Annotated[str, msgspec.Meta(description="Of finished jobs, in UTC.")] = ""
    days_waiting: Annotated[int, msgspec.Meta(description="Days with jobs that are past their retention.")] = 0
    oldest_waiting: str = ""


class Removed(msgspec.Struct, kw_only=True):
    """What one pass has removed."""

    jobs: int
    days: int
    other: int
    more: Annotated[bool, msgspec.Meta(description="More can be removed: run again.")]
    blocked: Annotated[bool, msgspec.Meta(description="Other transactions hold locks.")]


@patch("/v1/retention", uses="AdminService/SetRetention", tags=TAG)
async def set_retention(request: ApiRequest, data: JSONBody[SetRetention]) -> RetentionRulesOut:
    """Change how long finished jobs of all tenants are kept."""
    changes = {
        name: given * MILLISECOND
        for name in ("completed", "dead", "cancelled", "audit")
        if (given := getattr(data.rules, f"{name}_ms")) is not None
    }
    return rules_out(await request.cases.admin.set_retention(request.caller, changes, reason=data.reason))


@post("/v1/retention/run", uses="AdminService/RunRetention", tags=TAG)
async def run_retention(request: ApiRequest) -> Removed:
    """Run one retention pass of about a second, as every instance does periodically."""
    return answers.of(Removed, await request.cases.admin.run_retention(request.caller))


def rules_out(rules: RetentionRules) -> RetentionRulesOut:
    """The rules as read."""
    return answers.of(RetentionRulesOut, rules)


def status_out(status: RetentionStatus) -> RetentionStatusOut:
    """The status as read."""
    oldest_day, oldest_waiting = (str(one or "") for one in (status.oldest_day, status.oldest_waiting))
    return answers.of(
        RetentionStatusOut, status, rules=rules_out(status.rules), oldest_day=oldest_day, oldest_waiting=oldest_waiting
    )
