"""What the demo reads from the database: where the jobs are while it runs, and the verdict at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from headgate.domain.states import State
from headgate.store.connect import Connection

TOPICS: Final = ("order", "account", "report", "card")
_COUNTS: Final = """
SELECT t.name, j.state, count(*)
  FROM (SELECT topic_no, state FROM headgate.jobs UNION ALL SELECT topic_no, state FROM headgate.archive) AS j
  JOIN headgate.topics t USING (topic_no) GROUP BY t.name, j.state"""
_REPORTS: Final = """
SELECT id, state, attempt, progress FROM headgate.jobs WHERE id = ANY ($1)
UNION ALL SELECT id, state, attempt, progress FROM headgate.archive WHERE id = ANY ($1)"""
# Two sources that know nothing of each other: `archive` is Headgate's own, `demo.runs` is written by the handlers.
_VERDICT: Final = """
WITH runs AS (SELECT job_id, count(*) AS n FROM demo.runs GROUP BY job_id)
SELECT count(*) AS submitted,
       count(*) FILTER (WHERE a.state IS NULL OR a.state = 5 /* completed */ AND r.n IS NULL) AS lost,
       count(*) FILTER (WHERE r.n > 1) AS twice,
       count(*) FILTER (WHERE a.state = 6 /* dead */) AS dead
  FROM unnest($1::uuid[]) AS k (id) LEFT JOIN headgate.archive a USING (id) LEFT JOIN runs r ON r.job_id = k.id"""
_ATTEMPTS: Final = """
SELECT count(*) FILTER (WHERE kind = 1 /* failed */) AS failed,
       count(*) FILTER (WHERE kind = 3 /* lease_expired */) AS expired
  FROM headgate.job_events"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One job of the topic `report`: how far it is."""

    done: int
    total: int
    attempt: int
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Where the jobs are: by topic and state, and each report by its id."""

    counts: dict[str, dict[State, int]] = field(default_factory=dict)
    reports: dict[UUID, Report] = field(default_factory=dict)

    def total(self, *, final: bool) -> int:
        """Jobs that are, or are not, in a final state."""
        return sum(n for states in self.counts.values() for state, n in states.items() if state.is_final is final)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome, counted from rows."""

    submitted: int
    lost: int
    twice: int
    dead: int
    failed: int
    expired: int

    def holds(self, *, cards: int) -> bool:
        """True if no acknowledged job was lost, and nothing became a dead letter but the cards."""
        return self.submitted > 0 and self.lost == 0 and self.dead == cards

    def __str__(self) -> str:
        return f"lost {self.lost}, run twice {self.twice}, dead letters {self.dead}, of {self.submitted:,} jobs"


async def read_snapshot(db: Connection, reports: Sequence[UUID]) -> Snapshot:
    """Where the jobs are now."""
    counts: dict[str, dict[State, int]] = {}
    for name, state, n in await db.fetch(_COUNTS):
        counts.setdefault(name, {})[State(state)] = n
    found = {}
    for job_id, state, attempt, progress in await db.fetch(_REPORTS, list(reports)):
        at = json.loads(progress) if progress else {}
        found[job_id] = Report(
            done=int(at.get("done", 0)), total=int(at.get("total", 0)), attempt=attempt, state=State(state)
        )
    return Snapshot(counts=counts, reports=found)


async def read_verdict(db: Connection, acknowledged: Sequence[UUID]) -> Verdict:
    """What became of the jobs whose submit was acknowledged."""
    jobs = await db.fetchrow(_VERDICT, list(acknowledged))
    attempts = await db.fetchrow(_ATTEMPTS)
    assert jobs is not None, "a count is one row"
    assert attempts is not None, "a count is one row"
    return Verdict(**dict(jobs), **dict(attempts))
