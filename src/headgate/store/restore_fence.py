"""After a restore from a backup, or a failover that lost the end: what outlived the database is not its own any more.

Workers may hold jobs whose epochs the database gives out a second time; their outcomes would be taken for those of the
new runs. So the sequence that epochs come from moves on by more than was ever taken from it since the backup, and all
live jobs with it; finished ones follow when they are redriven. Instances that still run remember numbers of topics that
may mean others now; they find themselves forgotten at their next tick, and end.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.store.audit import record
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.lane import transaction
from headgate.store.migrate import check_schema

RANGES_AHEAD = 2**34
"""Each flush of submits takes a range of epochs: 19 days of 10,000 flushes a second. 512 restores fit in."""
# The whole table at once, before servers start; a session that works anyway waits, rather than deadlocks.
_ALONE = "LOCK TABLE headgate.jobs IN EXCLUSIVE MODE"
_NO_TIMEOUT = "SET LOCAL statement_timeout = 0"
# Not undone by a rollback: moving on once more does no harm.
_AHEAD = "SELECT setval('headgate.epoch_ranges', nextval('headgate.epoch_ranges') + $1) << 10"
_FLOOR = "INSERT INTO headgate.epoch_floors (epoch, at) VALUES ($1, headgate.clock_v1())"
_MOVE_ON = "UPDATE headgate.jobs SET epoch = $1"
_MOST_SECONDS = 3600.0
_FORGET = "DELETE FROM headgate.instances"
# Their transaction numbers may be those of another cluster.
_FORGET_ARRIVALS = "DELETE FROM headgate.arrivals"
_RENUMBER_TOPICS = "UPDATE headgate.topics SET changed_by = pg_current_xact_id()"
_NEW_FLOOR = """
UPDATE headgate.arrivals_floor SET generation = generation + 2, snapshot = pg_current_snapshot(), gone_to = '0'"""
# Streams of events would take what another cluster wrote for news, once its own numbers are as high.
_OLD_EVENTS = "UPDATE headgate.job_events SET xid = '3' WHERE xid >= pg_current_xact_id()"
_OLD_CHANGES = "UPDATE headgate.audit SET xid = '3' WHERE xid >= pg_current_xact_id()"
_FORGET_COMPLETIONS = "DELETE FROM headgate.completions"
_NO_RECORDING = "UPDATE headgate.event_recording SET since = timestamptz 'epoch', until = timestamptz 'epoch'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """What was done."""

    jobs: int
    instances: int


async def fence_restore(db: Connection, *, actor: str) -> Fenced:
    """Move every live job's epoch on and forget all instances, in one transaction, with an entry in the audit."""
    await check_schema(db)
    with translating(writing=True):
        async with transaction(db):
            await db.execute(_ALONE)
            await db.execute(_NO_TIMEOUT)
            floor = await db.fetchval(_AHEAD, RANGES_AHEAD)
            await db.execute(_FLOOR, floor)
            jobs = _rows(await db.execute(_MOVE_ON, floor, timeout=_MOST_SECONDS))
            instances = _rows(await db.execute(_FORGET))
            await db.execute(_FORGET_ARRIVALS)
            await db.execute(_NEW_FLOOR)
            await db.execute(_RENUMBER_TOPICS)
            await db.execute(_OLD_EVENTS, timeout=_MOST_SECONDS)
            for statement in (_OLD_CHANGES, _FORGET_COMPLETIONS, _NO_RECORDING):
                await db.execute(statement)
            await record(db, 0, actor=actor, verb="restored", target="database", detail={"jobs": jobs})
    return Fenced(jobs=jobs, instances=instances)


def _rows(status: str) -> int:
    return int(status.rpartition(" ")[2])
