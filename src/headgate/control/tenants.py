"""Tenants for their administrators: show, list, and set quotas.

A token of a tenant sees its own quotas and what is used of them. Only the scope `system` sets quotas, and lists
tenants: a tenant must not raise its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from headgate.domain.errors import InvalidInput, NotFound
from headgate.domain.identity import Identity, Scope
from headgate.domain.tenants import Quota, TenantView, checked_quotas
from headgate.domain.validation import check_page_size, check_reason, check_tenant


class TenantStore(Protocol):
    """What is asked of the database."""

    async def get(self, name: str, /, *, own: bool) -> TenantView: ...
    async def page(self, *, after: str, limit: int) -> list[TenantView]: ...
    async def defaults(self) -> dict[str, Quota]: ...
    async def set_quotas(
        self, name: str, changes: Mapping[str, Quota], /, *, actor: str, reason: str
    ) -> TenantView: ...
    async def set_defaults(self, changes: Mapping[str, Quota], /, *, actor: str, reason: str) -> dict[str, Quota]: ...


class Tenants:
    """The tenants that a caller may see or change."""

    def __init__(self, store: TenantStore, *, changed: Callable[[str], None] = lambda _: None) -> None:
        """`changed` makes this instance read the quotas of a tenant again; of all, for an empty name."""
        self._store, self._changed = store, changed

    async def get(self, caller: Identity, name: str = "") -> TenantView:
        """One tenant; without a name, that of the caller. Raises NotFound, also for another one's."""
        caller.require(Scope.READ, Scope.SYSTEM)
        if caller.permits(Scope.SYSTEM):
            if not (name or caller.tenant):
                raise InvalidInput("name", "is missing", hint="name the tenant")
            return await self._store.get(check_tenant(name or caller.tenant, field="name"), own=False)
        if name and name != caller.tenant:
            raise NotFound("tenant", name)
        return await self._store.get(caller.tenant, own=True)

    async def page(self, caller: Identity, *, after: str = "", limit: int) -> tuple[list[TenantView], str]:
        """A page by name, and the name after which the next one begins; empty on the last page."""
        caller.require(Scope.SYSTEM)
        check_page_size(limit)
        found = await self._store.page(after=after, limit=limit)
        return found, found[-1].name if len(found) == limit else ""

    async def defaults(self, caller: Identity) -> dict[str, Quota]:
        """The quotas of tenants without their own."""
        caller.require(Scope.SYSTEM)
        return await self._store.defaults()

    async def set_quotas(
        self, caller: Identity, name: str, changes: Mapping[str, object], *, reason: str = ""
    ) -> TenantView:
        """Set quotas of a tenant; None: the default counts again."""
        caller.require(Scope.SYSTEM)
        check_reason(reason)
        checked = _some(checked_quotas(changes))
        view = await self._store.set_quotas(
            check_tenant(name, field="name"), checked, actor=caller.subject, reason=reason
        )
        self._changed(name)
        return view

    async def set_defaults(
        self, caller: Identity, changes: Mapping[str, object], *, reason: str = ""
    ) -> dict[str, Quota]:
        """Set quotas of all tenants without their own; None: back to the built-in default."""
        caller.require(Scope.SYSTEM)
        check_reason(reason)
        after = await self._store.set_defaults(_some(checked_quotas(changes)), actor=caller.subject, reason=reason)
        self._changed("")
        return after


def _some(changes: dict[str, Quota]) -> dict[str, Quota]:
    if not changes:
        raise InvalidInput("quotas", "is empty", hint="give at least one quota to set")
    return changes
