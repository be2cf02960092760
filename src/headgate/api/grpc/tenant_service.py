"""TenantService: quotas of tenants. Translates and delegates to control/tenants.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from headgate.api.grpc.auth import caller
from headgate.api.grpc.codec import answers, at_us
from headgate.api.grpc.methods import Context
from headgate.control.tenants import Tenants
from headgate.domain import limits
from headgate.domain.rate_limits import rate_text
from headgate.domain.tenants import QUOTAS, Quota, TenantView, changes_of
from headgate.domain.topic_limits import Rate
from headgate.wire import tenants_pb2 as pb


class TenantService:
    """One method per call."""

    protocol: ClassVar = pb.DESCRIPTOR.services_by_name["TenantService"]

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    async def get_tenant(self, request: pb.GetTenantRequest, _call: Context) -> pb.TenantInfo:
        """One tenant."""
        return _info(await self._tenants.get(caller(), request.name))

    async def list_tenants(self, request: pb.ListTenantsRequest, _call: Context) -> pb.ListTenantsResponse:
        """A page of tenants."""
        found, after = await self._tenants.page(caller(), after=request.after, limit=request.limit or limits.NAMES_PAGE)
        return pb.ListTenantsResponse(tenants=map(_info, found), after=after)

    async def set_tenant(self, request: pb.SetTenantRequest, _call: Context) -> pb.TenantInfo:
        """Set quotas of a tenant."""
        changes = _changes(request.quotas, request.release)
        return _info(await self._tenants.set_quotas(caller(), request.name, changes, reason=request.reason))

    async def get_tenant_defaults(self, _request: pb.GetTenantDefaultsRequest, _call: Context) -> pb.TenantQuotas:
        """The quotas of tenants without their own."""
        return _quotas(await self._tenants.defaults(caller()))

    async def set_tenant_defaults(self, request: pb.SetTenantDefaultsRequest, _call: Context) -> pb.TenantQuotas:
        """Set quotas of tenants without their own."""
        changes = _changes(request.quotas, request.release)
        return _quotas(await self._tenants.set_defaults(caller(), changes, reason=request.reason))


def _changes(given: pb.TenantQuotas, release: Sequence[str]) -> dict[str, object]:
    return changes_of({name: getattr(given, name) for name in QUOTAS if given.HasField(name)}, release)  # type: ignore[arg-type]  # by name


def _quotas(quotas: Mapping[str, Quota]) -> pb.TenantQuotas:
    values = {name: rate_text(one) if isinstance(one, Rate) else one for name, one in quotas.items()}
    return pb.TenantQuotas(**values)  # type: ignore[arg-type]  # by name


def _info(view: TenantView) -> pb.TenantInfo:
    quotas, measured = _quotas(view.quotas), at_us(view.measured_at)
    return answers.of(pb.TenantInfo, view, quotas=quotas, own=sorted(view.own), stored_measured_us=measured)
