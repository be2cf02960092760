"""Patterns of topics in SQL: LIKE ANY finds what the matcher in memory finds."""

from __future__ import annotations

import pytest

from headgate.domain.topic_sets import TopicSet
from headgate.store.connect import Connection

TOPICS = [
    "orders",
    "orders.",
    "orders.eu",
    "orders.eu.paid",
    "ordersXeu",
    "a_b",
    "aXb",
    "a_bc",
    "mail",
    "m%l",
    "orders*",
]


@pytest.mark.parametrize(
    "patterns", [["orders.*"], ["orders*"], ["a_b*"], ["a_*"], ["mail", "a_b"], ["orders.eu.*", "m*"], []]
)
async def test_sql_and_memory_agree(db: Connection, patterns: list[str]) -> None:
    found = TopicSet.of(*patterns)
    rows = await db.fetch("SELECT t FROM unnest($1::text[]) AS t WHERE t LIKE ANY ($2::text[])", TOPICS, found.like)
    assert [row[0] for row in rows] == [one for one in TOPICS if one in found]
