"""A noun's calls as `control/` makes them: the tenant's name becomes its number, and each call has its lane.

A store class lists its calls; what they do, and their arguments, are described by the functions of its module.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from headgate.domain.ids import TenantNo
from headgate.store.connect import Connection
from headgate.store.database import Database
from headgate.store.names import Names

P = ParamSpec("P")
R = TypeVar("R")
Answer: TypeAlias = Coroutine[Any, Any, R]


class TenantCalls:
    """Calls over the connections of one instance."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def tenant_no(self, tenant: str) -> int:
        """The number of a tenant, made if need be."""
        return await self._database.tenant_no(tenant)


def tenant_call(
    lane: str, function: Callable[Concatenate[Connection, TenantNo, P], Answer[R]]
) -> Callable[Concatenate[TenantCalls, str, P], Answer[R]]:
    """The method that calls `function` for a tenant on a lane."""

    async def call(self: TenantCalls, tenant: str, /, *args: P.args, **kwargs: P.kwargs) -> R:
        tenant_no = TenantNo(await self._database.tenant_no(tenant))
        async with self._database.as_tenant(lane, tenant_no) as db:
            return await function(db, tenant_no, *args, **kwargs)

    return call


def named_call(
    lane: str, function: Callable[Concatenate[Connection, Names, TenantNo, P], Answer[R]]
) -> Callable[Concatenate[TenantCalls, str, P], Answer[R]]:
    """As `tenant_call`, for a function that also needs the names of topics and policies."""

    async def call(self: TenantCalls, tenant: str, /, *args: P.args, **kwargs: P.kwargs) -> R:
        tenant_no = TenantNo(await self._database.tenant_no(tenant))
        async with self._database.as_tenant(lane, tenant_no) as db:
            return await function(db, self._database.names, tenant_no, *args, **kwargs)

    return call


def any_tenant_call(
    lane: str, function: Callable[Concatenate[Connection, int | None, P], Answer[R]]
) -> Callable[Concatenate[TenantCalls, str | None, P], Answer[R]]:
    """As `tenant_call`, for a function that also works without a tenant: for all of them."""

    async def call(self: TenantCalls, tenant: str | None, /, *args: P.args, **kwargs: P.kwargs) -> R:
        tenant_no = None if tenant is None else await self._database.tenant_no(tenant)
        async with self._database.as_tenant(lane, tenant_no) as db:
            return await function(db, tenant_no, *args, **kwargs)

    return call


def lane_call(
    lane: str, function: Callable[Concatenate[Connection, P], Answer[R]]
) -> Callable[Concatenate[TenantCalls, P], Answer[R]]:
    """The method that calls `function` on a lane that works for all tenants."""

    async def call(self: TenantCalls, /, *args: P.args, **kwargs: P.kwargs) -> R:
        async with self._database.lane(lane).use() as db:
            return await function(db, *args, **kwargs)

    return call
