"""Health of this instance: whether it is ready, why not, and whether its database keeps what is acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headgate.control.ports import DurabilityReads
from headgate.domain.durability import Durability
from headgate.domain.errors import HeadgateError
from headgate.domain.identity import Identity, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthDetails:
    """One instance. `database` None: it could not be read, and `database_error` says why."""

    instance: str
    version: str
    ready: bool
    reason: str  # why it is not ready
    database: Durability | None
    database_error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What probes, load balancers and operators ask."""

    instance: str
    version: str
    ready: Callable[[], bool]
    reason: Callable[[], str]
    """Why the instance is not ready; empty: it is."""
    read_only: Callable[[], str]
    """Why the database takes no writes; empty: it takes them."""
    store: DurabilityReads

    async def details(self, caller: Identity) -> HealthDetails:
        """Everything. A database that does not answer is a part of the answer, not an error."""
        caller.require(Scope.READ, Scope.SYSTEM)
        database, error = None, ""
        try:
            database = await self.store.durability()
        except HeadgateError as problem:
            error = str(problem)
        return HealthDetails(
            instance=self.instance,
            version=self.version,
            ready=self.ready(),
            reason=self.reason(),
            database=database,
            database_error=error,
        )
