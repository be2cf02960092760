"""The advisory locks, all of them: a pair of numbers each. PostgreSQL keeps those of different databases apart.
SQL names the lock beside its number: `pg_advisory_xact_lock(4847423, 1 /* dispatch */)`."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

NAMESPACE: Final = 4_847_423
"""The first number of each pair."""


class AdvisoryLock(IntEnum):
    """The second number."""

    DISPATCH = 1  # shared by claims; exclusive for a pause and a change of limits, which wait for claims in flight
    PARTITIONS = 2  # two instances may make the same day's partitions at the same moment
    LIMIT_DRIFT = 3  # two that saw the same wrong counter would both put it right
    ROLES = 4  # two processes may make the roles of an embedded PostgreSQL at the same moment
    CONSUMERS = 5  # two instances may give the last free place of a topic to a session of theirs at the same moment
    STORED_BYTES = 6  # one instance at a time measures what tenants store
