"""The members of a batch and what they wait for. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from headgate.domain.dependencies import BatchStatus
from headgate.domain.states import State

MEMBERS_MAX: Final = 500
"""Members that one graph has; of a larger batch the first, by their ids."""
EDGES_MAX: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMember:
    """A job of a batch. `state` None: retention has removed it."""

    id: UUID
    topic: str
    state: State | None
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A job that waits for another one, or did. `met`: it has what it needs of it."""

    parent: UUID
    child: UUID
    met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchGraph:
    """A batch, its members, and the dependencies between them. `more`: it has members that are not among these."""

    batch: BatchStatus
    members: Sequence[BatchMember]
    edges: Sequence[Edge] = ()
    more: bool = False
