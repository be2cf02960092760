"""The history of a topic's policy: its newest versions, written in the transaction of each change."""

from __future__ import annotations

import json
from typing import Final

from headgate.domain import limits
from headgate.domain.topic_policy import HISTORY_KEPT, PolicyVersion, changes_from_plain, plain_changes
from headgate.domain.topic_rules import plain_rules, rules_from_plain
from headgate.domain.validation import check_integer, check_topic
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.rows import from_row

RECORD: Final = """
INSERT INTO headgate.topic_versions (topic_no, version, at, actor, verb, reason, settings, changes)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"""
FORGET: Final = "DELETE FROM headgate.topic_versions WHERE topic_no = $1 AND version <= $2"
HISTORY: Final = """
SELECT v.version, v.at, v.actor, v.verb, v.reason, v.settings, v.changes
  FROM headgate.topics t JOIN headgate.topic_versions v ON v.topic_no = t.topic_no
 WHERE t.tenant_no = $1 AND t.name = $2 AND ($3::int IS NULL OR v.version < $3)
 ORDER BY v.version DESC LIMIT $4"""


async def record(db: Connection, topic_no: int, version: PolicyVersion) -> None:
    """Keep a version, and forget what is too old."""
    with translating(writing=True):
        await db.execute(
            RECORD,
            topic_no,
            version.version,
            version.at,
            version.actor,
            version.verb,
            version.reason,
            json.dumps(plain_rules(version.settings)),
            plain_changes(version.changes),
        )
        await db.execute(FORGET, topic_no, version.version - HISTORY_KEPT)


async def history(
    db: Connection, tenant_no: int, name: str, *, before: int | None = None, limit: int = 100
) -> list[PolicyVersion]:
    """The versions of a topic, newest first; of one that does not exist, or never changed, none."""
    check_integer(limit, field="limit", low=1, high=limits.PAGE_MAX)
    with translating(writing=False):
        rows = await db.fetch(HISTORY, tenant_no, check_topic(name), before, limit)
    return [
        from_row(PolicyVersion, row, settings=rules_from_plain(json.loads(row[5])), changes=changes_from_plain(row[6]))
        for row in rows
    ]
