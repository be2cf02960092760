"""The audit: changes that were not about a single job."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar.params import QueryParameter

from headgate.api.http.codec import Output, answers, moment
from headgate.api.http.request import ApiRequest
from headgate.api.http.routing import PageSize, get
from headgate.control.admin import AUDIT_TERM_MAX_CHARS
from headgate.domain import limits
from headgate.domain.views import AuditFilter


class AuditEntry(Output, kw_only=True):
    """One change."""

    no: Annotated[int, msgspec.Meta(description="`before` for the page after it.")]
    at_us: int
    everything: Annotated[bool, msgspec.Meta(description="It concerns all tenants.")] = False
    actor: str
    verb: str
    target: str = ""
    reason: str = ""
    detail: dict[str, Any] = {}
    tenant: Annotated[str, msgspec.Meta(description="Whose it is; left out if it concerns all tenants.")] = ""


class AuditPage(Output, kw_only=True):
    """Newest first."""

    entries: list[AuditEntry]
    next_before: Annotated[
        int | None,
        msgspec.Meta(
            description="`before` of the next page. With a filter a page can be short although others follow."
        ),
    ] = None
    all_tenants: Annotated[bool, msgspec.Meta(description="The entries are those of all tenants, not of one.")] = False


@get("/v1/audit", uses="AdminService/ListAudit", tags=["audit"])
async def list_audit(
    request: ApiRequest,
    before: Annotated[
        int | None, QueryParameter(ge=1, le=2**63 - 1, description="Number of the last entry of the previous page.")
    ] = None,
    limit: PageSize = limits.NAMES_PAGE,
    actor: Annotated[
        str, QueryParameter(max_length=AUDIT_TERM_MAX_CHARS, description="Only changes by this one.")
    ] = "",
    verb: Annotated[
        str, QueryParameter(max_length=AUDIT_TERM_MAX_CHARS, description="Only changes of this kind.")
    ] = "",
    target: Annotated[
        str, QueryParameter(max_length=AUDIT_TERM_MAX_CHARS, description="Found anywhere in the target.")
    ] = "",
    since_us: Annotated[int | None, QueryParameter(ge=1, le=2**63 - 1, description="At this time or later.")] = None,
    until_us: Annotated[int | None, QueryParameter(ge=1, le=2**63 - 1, description="Before this time.")] = None,
) -> AuditPage:
    """List audit entries, newest first."""
    since, until = moment(since_us, field="since_us"), moment(until_us, field="until_us")
    wanted = AuditFilter(actor=actor, verb=verb, target=target, since=since, until=until)
    found = await request.cases.admin.audit(request.caller, before=before, limit=limit, wanted=wanted)
    entries = [answers.of(AuditEntry, one, detail=dict(one.detail or {})) for one in found.entries]
    return answers.of(AuditPage, found, entries=entries)
