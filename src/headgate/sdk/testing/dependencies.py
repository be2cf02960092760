"""Which jobs of a box wait for which others, by the rules of `store/functions/meet_v1.sql`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from headgate.domain.dependencies import Met, Needs, NewBatch, OnParentFailure
from headgate.domain.ids import JobId
from headgate.domain.states import State


@dataclass(slots=True, kw_only=True)
class Edge:
    """One dependency; `parent` is a job, or for the callback of a batch the batch."""

    parent: JobId
    child: JobId
    needs: Needs = Needs.SUCCEEDED
    on_failure: OnParentFailure = OnParentFailure.CANCEL
    met: Met = Met.WAITING

    def parent_ended(self, state: State) -> bool:
        """Record the end of the parent; True if the child is to be checked."""
        if self.met is not Met.WAITING:
            return False
        if state is State.COMPLETED or self.needs is Needs.ENDED or self.on_failure is OnParentFailure.IGNORE:
            self.met = Met.FULFILLED
        elif self.on_failure is not OnParentFailure.BLOCK:  # else it waits on: the parent may be redriven
            self.met = Met(int(state))
        return self.met is not Met.WAITING


@dataclass(slots=True, kw_only=True)
class StoredBatch:
    """A batch and its members."""

    asked: NewBatch
    created_at: datetime
    callback: JobId | None
    members: list[JobId] = field(default_factory=list)
    sealed_at: datetime | None = None
    expired: bool = False

    @property
    def expires_at(self) -> datetime:
        return self.created_at + self.asked.expires_in


class Dependencies:
    """All dependencies of a box, by parent and by child."""

    def __init__(self) -> None:
        self._by_parent: dict[JobId, list[Edge]] = {}
        self._by_child: dict[JobId, list[Edge]] = {}

    def add(self, edge: Edge) -> None:
        """Store one."""
        self._by_parent.setdefault(edge.parent, []).append(edge)
        self._by_child.setdefault(edge.child, []).append(edge)

    def of_parent(self, parent: JobId) -> list[Edge]:
        """Those of the jobs that wait for this one."""
        return self._by_parent.get(parent, [])

    def of_child(self, child: JobId) -> list[Edge]:
        """Those of the jobs that this one waits for."""
        return self._by_child.get(child, [])

    def ended(self, parent: JobId, state: State) -> Iterator[JobId]:
        """A job has ended: the children to be checked."""
        return (edge.child for edge in self.of_parent(parent) if edge.parent_ended(state))

    def is_broken(self, child: JobId) -> bool:
        """True if one of them can no longer be fulfilled."""
        return any(edge.met > Met.FULFILLED for edge in self.of_child(child))

    def is_fulfilled(self, child: JobId) -> bool:
        """True if all of them are."""
        return all(edge.met is Met.FULFILLED for edge in self.of_child(child))
