"""What the database did while it was watched, and what to do about it: the report of `headgate doctor --load`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

RUNNING: Final = "running"
IDLE: Final = "idle"
BUSY_SHARE: Final = 0.8
HIT_SHARE: Final = 0.95
READS_PER_SECOND: Final = 1_000
CONNECTIONS_SHARE: Final = 0.8
OLD_SECONDS: Final = 60
DEAD_ROWS: Final = 100_000

_WAITS: Final = (
    ("IPC:SyncRep", "commits wait for a synchronous standby: check its disk, its load and the network to it"),
    ("IO:WAL", "commits wait for the disk of the WAL: put it on a faster one, and check what else writes there"),
    ("LWLock:WAL", "commits wait for each other's WAL: put it on a faster disk"),
    (
        "Lock:",
        "it waits for locks of other transactions: look for long ones in pg_stat_activity, and end or shorten them",
    ),
    ("IO:DataFile", "it waits for reads of data files: give PostgreSQL more memory (shared_buffers), or a faster disk"),
    ("Client:", "transactions are open while the server is busy: check its processor, and headgate_loop_lag_seconds"),
)
"""The beginning of a wait, as in pg_stat_activity, and what it means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement, as pg_stat_statements counted it meanwhile."""

    name: str
    calls: int
    total_ms: float
    rows: int

    @property
    def mean_ms(self) -> float:
        """Of one call."""
        return self.total_ms / self.calls if self.calls else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLoad:
    """What the connections of one lane were seen doing, by samples."""

    lane: str
    seen: Mapping[str, int]
    """By `idle`, `running`, or a wait such as `IO:WALSync`: in how many samples."""

    @property
    def busy(self) -> float:
        """The part of the samples in which it was not idle."""
        total = sum(self.seen.values())
        return 1 - self.seen.get(IDLE, 0) / total if total else 0.0

    @property
    def mostly(self) -> str:
        """What it did most while it was busy."""
        busy = Counter({what: count for what, count in self.seen.items() if what != IDLE})
        return busy.most_common(1)[0][0] if busy else IDLE


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What was seen in `seconds`."""

    seconds: float
    lanes: Sequence[LaneLoad] = ()
    statements: Sequence[Statement] | None = None
    """None: pg_stat_statements is not installed."""
    commits: int = 0
    rollbacks: int = 0
    blocks_read: int = 0
    blocks_hit: int = 0
    deadlocks: int = 0
    wal_bytes: int = 0
    connections: int = 0
    connections_max: int = 0
    oldest_transaction_seconds: float = 0.0
    dead_rows: Mapping[str, int] = field(default_factory=dict)

    def advice(self) -> list[str]:
        """What to do, the most urgent first; never empty."""
        found = [*self._of_lanes(), *self._of_database()]
        if not self.lanes:
            found.insert(0, "no server is connected to this database; start one, and put load on it")
        elif not found:
            found.append("no connection is busy most of the time: the database is not what limits throughput")
        if self.statements is None:
            found.append(
                "for times of single statements, add pg_stat_statements to shared_preload_libraries, restart "
                "PostgreSQL, and run CREATE EXTENSION pg_stat_statements"
            )
        return found

    def _of_lanes(self) -> list[str]:
        found = []
        for lane in sorted(self.lanes, key=lambda one: one.busy, reverse=True):
            if lane.busy < BUSY_SHARE:
                continue
            text = f"lane {lane.lane} is busy {lane.busy:.0%} of the time, mostly {lane.mostly}"
            if lane.mostly == RUNNING:
                text += ": PostgreSQL's processor is the limit; give it more or faster cores"
            else:
                meaning = next((text for start, text in _WAITS if lane.mostly.startswith(start)), "")
                text += f": {meaning}" if meaning else ""
            found.append(text)
        return found

    def _of_database(self) -> list[str]:
        found = []
        if self.oldest_transaction_seconds >= OLD_SECONDS:
            found.append(
                f"a transaction has been open for {self.oldest_transaction_seconds:.0f} s: dead rows cannot be removed "
                "meanwhile; end it, or use a replica for long queries"
            )
        for table, rows in sorted(self.dead_rows.items(), key=lambda one: one[1], reverse=True):
            if rows >= DEAD_ROWS:
                found.append(f"table headgate.{table} has {rows} dead rows: see whether autovacuum is on and keeps up")
        blocks = self.blocks_read + self.blocks_hit
        if self.blocks_read > READS_PER_SECOND * self.seconds and self.blocks_hit < HIT_SHARE * blocks:
            found.append(
                f"only {self.blocks_hit / blocks:.0%} of the pages were in memory: raise shared_buffers, or add memory"
            )
        if self.connections_max and self.connections >= CONNECTIONS_SHARE * self.connections_max:
            found.append(
                f"{self.connections} of {self.connections_max} connections are in use: raise max_connections, or put a "
                "pooler in front of the applications"
            )
        if self.deadlocks:
            found.append(f"{self.deadlocks} deadlocks: look for other programs that write to headgate's tables")
        if self.rollbacks > self.commits:
            found.append("more transactions were rolled back than committed: look at the log of PostgreSQL for errors")
        return found
