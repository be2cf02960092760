"""Quotas of tenants: `hg.admin.tenants`."""

from __future__ import annotations

from builtins import list as list_of
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from headgate.domain.rate_limits import rate_text
from headgate.domain.tenants import QUOTAS, checked_quotas
from headgate.domain.topic_limits import Rate
from headgate.sdk.admin.encoding import utf8_text
from headgate.sdk.connection import Connection
from headgate.sdk.records import record
from headgate.sdk.rpc import Method
from headgate.wire import tenants_pb2 as pb

GET: Final = Method("TenantService/GetTenant", pb.GetTenantRequest, pb.TenantInfo)
LIST: Final = Method("TenantService/ListTenants", pb.ListTenantsRequest, pb.ListTenantsResponse)
SET: Final = Method("TenantService/SetTenant", pb.SetTenantRequest, pb.TenantInfo)
DEFAULTS: Final = Method("TenantService/GetTenantDefaults", pb.GetTenantDefaultsRequest, pb.TenantQuotas)
SET_DEFAULTS: Final = Method("TenantService/SetTenantDefaults", pb.SetTenantDefaultsRequest, pb.TenantQuotas)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantInfo:
    """A tenant. `quotas` are those that count, None for no limit; `own` names those that were set for this tenant.

    `used` has what is used of a quota, where it is known. `submit_rate` is text: `1000/1s:5000`.
    """

    name: str
    quotas: Mapping[str, int | str | None]
    own: tuple[str, ...]
    used: Mapping[str, int]
    stored_measured: datetime | None
    created: datetime | None


class TenantsAdmin:
    """Tenants and their quotas. All but `get` of your own tenant needs a token of the scope `system`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(self, name: str = "") -> TenantInfo:
        """One tenant; without a name, that of the token. Raises NotFound."""
        request = pb.GetTenantRequest(name=utf8_text(name, field="name"))
        return _info(await self._connection.call(GET, request, about=("tenant", name)))

    async def list(self) -> list_of[TenantInfo]:
        """All tenants by name."""
        found: list_of[TenantInfo] = []
        request = pb.ListTenantsRequest(limit=1_000)
        while True:
            answer = await self._connection.call(LIST, request)
            found += map(_info, answer.tenants)
            if not answer.after:
                return found
            request.after = answer.after

    async def set(self, name: str, *, release: Sequence[str] = (), reason: str = "", **quotas: int | str) -> TenantInfo:
        """Set quotas of a tenant: `set("acme", max_backlog=100_000, submit_rate="1000/1s")`.

        The tenant is created if it does not exist. `release` names quotas for which the default is to count again.
        """
        request = pb.SetTenantRequest(
            name=utf8_text(name, field="name"),
            quotas=_wire(quotas),
            release=[utf8_text(one, field="release") for one in release],
            reason=utf8_text(reason, field="reason"),
        )
        return _info(await self._connection.call(SET, request))

    async def defaults(self) -> dict[str, int | str | None]:
        """The quotas of tenants without their own; None: no limit."""
        return _quotas(await self._connection.call(DEFAULTS, pb.GetTenantDefaultsRequest()))

    async def set_defaults(
        self, *, release: Sequence[str] = (), reason: str = "", **quotas: int | str
    ) -> dict[str, int | str | None]:
        """Set quotas of all tenants that have none of their own."""
        request = pb.SetTenantDefaultsRequest(
            quotas=_wire(quotas),
            release=[utf8_text(one, field="release") for one in release],
            reason=utf8_text(reason, field="reason"),
        )
        return _quotas(await self._connection.call(SET_DEFAULTS, request))


def _wire(quotas: Mapping[str, int | str]) -> pb.TenantQuotas:
    checked = checked_quotas(quotas)
    return pb.TenantQuotas(**{name: rate_text(one) if isinstance(one, Rate) else one for name, one in checked.items()})  # type: ignore[arg-type]  # by name


def _quotas(one: pb.TenantQuotas) -> dict[str, int | str | None]:
    return {name: getattr(one, name) if one.HasField(name) else None for name in QUOTAS}  # type: ignore[arg-type]  # by name


def _info(one: pb.TenantInfo) -> TenantInfo:
    return record(TenantInfo, one, quotas=_quotas(one.quotas))
