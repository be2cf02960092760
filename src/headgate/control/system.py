"""What an installation runs with. It concerns all tenants, so it needs the scope `system`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headgate.domain.identity import Identity, Scope
from headgate.domain.system import DatabaseFacts, SystemReport


class SystemReads(Protocol):
    """Facts about the database."""

    async def facts(self) -> DatabaseFacts: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Reads the report of this instance."""

    store: SystemReads
    instance: str
    settings: Mapping[str, str] = field(hash=False)
    """As they are in effect, without secrets."""
    versions: Mapping[str, str] = field(hash=False)

    async def report(self, caller: Identity) -> SystemReport:
        """Everything. Raises PermissionDenied without the scope `system`."""
        caller.require(Scope.SYSTEM)
        return SystemReport(
            instance=self.instance,
            settings=self.settings,
            versions=self.versions,
            database=await self.store.facts(),
        )
