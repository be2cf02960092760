"""Tenants: their quotas, and what they use of them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar.params import JSONBody, PathParameter, QueryParameter

from headgate.api.http.codec import Input, Output, Reason, answers, at_us
from headgate.api.http.request import ApiRequest
from headgate.api.http.routing import PageSize, get, patch
from headgate.domain import limits
from headgate.domain.rate_limits import rate_text
from headgate.domain.tenants import QUOTAS, Quota, TenantView, changes_of
from headgate.domain.topic_limits import Rate

TAG = ["tenants"]
TenantName = Annotated[str, PathParameter(max_length=limits.TENANT_MAX_CHARS, description="Name of the tenant.")]
RateText = Annotated[str, msgspec.Meta(max_length=100)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


class QuotasIn(Input, kw_only=True):
    """Quotas to set; those that are left out stay."""

    submit_rate: Annotated[
        RateText | None, msgspec.Meta(description="Jobs over time, on each instance: `1000/1s:5000`.")
    ] = None
    max_backlog: Annotated[Count | None, msgspec.Meta(description="Jobs that wait, over all topics.")] = None
    max_stored_bytes: Annotated[Count | None, msgspec.Meta(description="Bytes of payloads and results.")] = None
    max_payload_bytes: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=limits.PAYLOAD_MAX_BYTES)] | None,
        msgspec.Meta(description="Bytes of the payload of one job."),
    ] = None
    max_sessions: Annotated[Count | None, msgspec.Meta(description="Worker sessions, over all instances.")] = None
    max_schedules: Count | None = None
    max_webhooks: Count | None = None
    max_topics: Count | None = None
    max_policies: Annotated[Count | None, msgspec.Meta(description="Different retry policies.")] = None
    release: Annotated[
        list[str],
        msgspec.Meta(description="Names of quotas for which the default is to count again.", max_length=len(QUOTAS)),
    ] = []
    reason: Reason = ""

    def changes(self) -> dict[str, object]:
        """The quotas by name; None: to be released."""
        given = {name: getattr(self, name) for name in QUOTAS if getattr(self, name) is not None}
        return changes_of(given, self.release)


class Quotas(Output, kw_only=True):
    """Quotas; one that is left out has no limit."""

    submit_rate: str | None = None
    max_backlog: int | None = None
    max_stored_bytes: int | None = None
    max_payload_bytes: int | None = None
    max_sessions: int | None = None
    max_schedules: int | None = None
    max_webhooks: int | None = None
    max_topics: int | None = None
    max_policies: int | None = None


class TenantInfo(Output, kw_only=True):
    """A tenant."""

    name: str
    quotas: Annotated[Quotas, msgspec.Meta(description="Those that count.")]
    own: Annotated[list[str], msgspec.Meta(description="Quotas that were set for this tenant.")] = []
    used: Annotated[dict[str, int], msgspec.Meta(description="What is used, by quota, where it is known.")] = {}
    stored_measured_us: int = 0
    created_us: int = 0


class TenantPage(Output, kw_only=True):
    """A page of tenants by name."""

    tenants: list[TenantInfo]
    after: Annotated[str, msgspec.Meta(description="For the next page; left out on the last one.")] = ""


@get("/v1/tenant", uses="TenantService/GetTenant", tags=TAG)
async def get_own_tenant(request: ApiRequest) -> TenantInfo:
    """Show the quotas of the tenant of the token, and what it uses."""
    return _info(await request.cases.tenants.get(request.caller))


@get("/v1/tenants", uses="TenantService/ListTenants", tags=TAG)
async def list_tenants(
    request: ApiRequest,
    after: Annotated[
        str,
        QueryParameter(max_length=limits.TENANT_MAX_CHARS, description="The name after which the page begins."),
    ] = "",
    limit: PageSize = limits.NAMES_PAGE,
) -> TenantPage:
    """List tenants by name. It needs the scope `system`."""
    found, following = await request.cases.tenants.page(request.caller, after=after, limit=limit)
    return TenantPage(tenants=[_info(one) for one in found], after=following)


@get("/v1/tenants/{tenant:str}", uses="TenantService/GetTenant", tags=TAG)
async def get_tenant(request: ApiRequest, tenant: TenantName) -> TenantInfo:
    """Show one tenant."""
    return _info(await request.cases.tenants.get(request.caller, tenant))


@patch("/v1/tenants/{tenant:str}", uses="TenantService/SetTenant", tags=TAG)
async def set_tenant(request: ApiRequest, tenant: TenantName, data: JSONBody[QuotasIn]) -> TenantInfo:
    """Set quotas of a tenant, which is created if it does not exist. It needs the scope `system`."""
    return _info(await request.cases.tenants.set_quotas(request.caller, tenant, data.changes(), reason=data.reason))


@get("/v1/tenant-defaults", uses="TenantService/GetTenantDefaults", tags=TAG)
async def get_tenant_defaults(request: ApiRequest) -> Quotas:
    """Show the quotas of tenants without their own."""
    return _quotas(await request.cases.tenants.defaults(request.caller))


@patch("/v1/tenant-defaults", uses="TenantService/SetTenantDefaults", tags=TAG)
async def set_tenant_defaults(request: ApiRequest, data: JSONBody[QuotasIn]) -> Quotas:
    """Set quotas of all tenants that have none of their own."""
    return _quotas(await request.cases.tenants.set_defaults(request.caller, data.changes(), reason=data.reason))


def _quotas(quotas: dict[str, Quota]) -> Quotas:
    return Quotas(**{name: rate_text(one) if isinstance(one, Rate) else one for name, one in quotas.items()})  # type: ignore[arg-type]  # a rate is text


def _info(view: TenantView) -> TenantInfo:
    quotas, measured = _quotas(dict(view.quotas)), at_us(view.measured_at)
    used, own = dict(view.used), sorted(view.own)
    return answers.of(TenantInfo, view, quotas=quotas, own=own, used=used, stored_measured_us=measured)
