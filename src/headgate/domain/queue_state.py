"""What metrics show of the database: the same for all instances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.domain.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """Rows of a table when PostgreSQL last counted them."""

    live: int
    dead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """One reading. Topics are (tenant, topic); those beyond the bound are summed up as ("", "other")."""

    jobs: Mapping[tuple[str, str], Mapping[State, int]] = field(default_factory=dict)
    oldest_due_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    tables: Mapping[str, TableRows] = field(default_factory=dict)
    oldest_transaction_seconds: float = 0.0
    xmin_age: int = 0
    """Transactions since the oldest snapshot that is held: what has died since cannot be removed."""
    retention_days_waiting: int = 0
    retention_lag_seconds: float = 0.0
    instances: int = 0
    webhooks_pending: int = 0
    webhooks_oldest_due_seconds: float = 0.0
