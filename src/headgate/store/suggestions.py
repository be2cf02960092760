"""What is suggested while a filter is typed: names of topics and schedules, and a bounded sample of the newest jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from headgate.domain.bulk import JobLine
from headgate.domain.filter_suggestions import SAMPLE_BODIES, SAMPLE_JOBS
from headgate.domain.states import State
from headgate.domain.topic_sets import TopicSet
from headgate.store import listing, matching, reads
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.tenant_calls import TenantCalls, tenant_call

NAMES_MAX: Final = 1_000
TOPIC_NAMES: Final = """
SELECT name FROM headgate.topics
 WHERE tenant_no = $1 AND strpos(lower(name), lower($2)) > 0 AND ($3::text[] IS NULL OR name LIKE ANY ($3))
 ORDER BY name LIMIT $4"""
SCHEDULE_NAMES: Final = """
SELECT s.name FROM headgate.schedules s JOIN headgate.topics t ON t.topic_no = s.topic_no
 WHERE s.tenant_no = $1 AND strpos(lower(s.name), lower($2)) > 0 AND ($3::text[] IS NULL OR t.name LIKE ANY ($3))
 ORDER BY s.name LIMIT $4"""


async def topic_names(db: Connection, tenant_no: int, *, containing: str, topics: TopicSet | None) -> list[str]:
    """Names of topics that contain a text."""
    return await _names(db, TOPIC_NAMES, tenant_no, containing, topics)


async def schedule_names(db: Connection, tenant_no: int, *, containing: str, topics: TopicSet | None) -> list[str]:
    """Names of schedules that contain a text."""
    return await _names(db, SCHEDULE_NAMES, tenant_no, containing, topics)


async def _names(db: Connection, statement: str, tenant_no: int, containing: str, topics: TopicSet | None) -> list[str]:
    with translating(writing=False):
        rows = await db.fetch(statement, tenant_no, containing, None if topics is None else topics.like, NAMES_MAX)
    return [row[0] for row in rows]


async def newest_jobs(db: Connection, tenant_no: int, *, topics: TopicSet | None, failed: bool) -> list[JobLine]:
    """The newest jobs with their tags; `failed`: only dead ones."""
    wanted = await _visible(db, tenant_no, topics, failed=failed)
    if wanted is None:
        return []
    found = await listing.step(db, tenant_no, wanted, below=listing.NEWEST, limit=SAMPLE_JOBS)
    tags = await reads.tags(db, tenant_no, [row.id for row in found.rows])
    return [replace(row, tags=tags[row.id]) if row.id in tags else row for row in found.rows]


async def newest_payloads(db: Connection, tenant_no: int, *, topics: TopicSet | None) -> list[bytes]:
    """Payloads of the newest jobs; large ones are left out, as a filter does not read them."""
    wanted = await _visible(db, tenant_no, topics, failed=False)
    if wanted is None:
        return []
    found = await listing.step(db, tenant_no, wanted, below=listing.NEWEST, limit=SAMPLE_BODIES)
    with translating(writing=False):
        bodies = await listing.bodies(db, tenant_no, [row.id for row in found.rows])
    return list(bodies.values())


async def _visible(db: Connection, tenant_no: int, topics: TopicSet | None, *, failed: bool) -> listing.Filter | None:
    states = frozenset({State.DEAD}) if failed else None
    if topics is None:
        return listing.Filter(states=states)
    numbers = await matching.topic_nos(db, tenant_no, (), topics)
    return listing.Filter(states=states, topic_nos=numbers) if numbers else None


class SuggestionStore(TenantCalls):
    """Fits control's port for suggestions."""

    topic_names = tenant_call("list", topic_names)
    schedule_names = tenant_call("list", schedule_names)
    newest_jobs = tenant_call("list", newest_jobs)
    newest_payloads = tenant_call("list", newest_payloads)
