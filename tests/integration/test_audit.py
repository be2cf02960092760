"""The audit of operators: what is committed is in it, what is undone is not."""

from __future__ import annotations

import pytest

from headgate.domain.errors import InvalidInput
from headgate.store import audit
from headgate.store.connect import Connection


async def test_entries_come_newest_first_and_page_by_number(db: Connection) -> None:
    for n in range(5):
        await audit.record(db, 1, actor="ana", verb="pause", target=f"topic t{n}", reason="r", detail={"n": n})
    first = await audit.entries(db, 1, limit=2)
    rest = await audit.entries(db, 1, before=first[-1].no)
    assert [entry.detail["n"] for entry in [*first, *rest]] == [4, 3, 2, 1, 0]
    assert (first[0].actor, first[0].verb, first[0].target, first[0].reason) == ("ana", "pause", "topic t4", "r")


async def test_another_tenants_entries_are_not_shown_but_those_about_everything_are(db: Connection) -> None:
    for tenant_no in (0, 1, 2):
        await audit.record(db, tenant_no, actor="ana", verb="pause", target=str(tenant_no))
    assert [entry.tenant_no for entry in await audit.entries(db, 1)] == [1, 0]
    assert [entry.tenant_no for entry in await audit.entries(db)] == [2, 1, 0]


async def test_a_verb_that_is_undone_leaves_no_entry(db: Connection) -> None:
    transaction = db.transaction()
    await transaction.start()
    await audit.record(db, 1, actor="ana", verb="pause", target="everything")
    await transaction.rollback()
    assert await audit.entries(db) == []


async def test_a_page_without_bounds_is_refused(db: Connection) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        await audit.entries(db, limit=0)
