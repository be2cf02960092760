"""The audit of operators: what is committed is in it, what is undone is not."""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest

from headgate.domain.errors import InvalidInput
from headgate.domain.log_fields import REQUEST_ID
from headgate.domain.views import AuditFilter
from headgate.store import audit
from headgate.store.connect import Connection
from headgate.store.lane import transaction

SHOWN = {"pause", "resume", "set_retention", "set_tenant_defaults"}


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


async def test_a_tenant_sees_of_what_concerns_all_only_verbs_that_are_for_it(db: Connection) -> None:
    """A new verb of system operators is not shown to tenants by accident."""
    for verb in (*SHOWN, "create_key", "revoke_session", "a_new_verb"):
        await audit.record(db, 0, actor="sys", verb=verb, target="x")
    assert {entry.verb for entry in await audit.entries(db, 1)} == SHOWN
    wanted = AuditFilter(actor="sys")
    assert {entry.verb for entry in (await audit.page(db, 1, wanted, before=None, limit=10)).entries} == SHOWN
    for page in (await audit.entries(db), (await audit.page(db, None, wanted, before=None, limit=10)).entries):
        assert len(page) == len(SHOWN) + 3, "the scope system sees all of them"


async def test_a_verb_that_is_undone_leaves_no_entry(db: Connection) -> None:
    transaction = db.transaction()
    await transaction.start()
    await audit.record(db, 1, actor="ana", verb="pause", target="everything")
    await transaction.rollback()
    assert await audit.entries(db) == []


async def test_a_line_is_logged_after_the_commit_and_never_for_what_is_undone(
    db: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headgate.audit")

    async def noted(target: str) -> None:
        await audit.record(db, 1, actor="ana", verb="pause", target=target)
        assert target not in caplog.text, "logged before the commit"

    async with transaction(db):
        await noted("kept")
        async with transaction(db):
            await noted("kept within")
        with suppress(InvalidInput):
            async with transaction(db):
                await noted("undone within")
                raise InvalidInput("x", "undone")
    with suppress(InvalidInput):
        async with transaction(db):
            async with transaction(db):
                await noted("undone")
            raise InvalidInput("x", "undone")
    assert [record.args[1] for record in caplog.records] == ["kept", "kept within"]  # type: ignore[index]
    assert [entry.target for entry in await audit.entries(db)] == ["kept within", "kept"]


async def test_an_entry_names_the_request_that_made_the_change(db: Connection) -> None:
    token = REQUEST_ID.set("r-1")
    try:
        await audit.record(db, 1, actor="ana", verb="pause", target="topic mail", detail={"old": 1})
        await audit.record(db, 1, actor="ana", verb="pause", target="topic mail")
    finally:
        REQUEST_ID.reset(token)
    await audit.record(db, 1, actor="ana", verb="pause", target="topic mail")
    found = [dict(one.detail) for one in await audit.entries(db, 1)]
    assert found == [{}, {"request_id": "r-1"}, {"old": 1, "request_id": "r-1"}]


async def test_a_page_without_bounds_is_refused(db: Connection) -> None:
    for limit in (0, 501):
        with pytest.raises(InvalidInput, match="limit"):
            await audit.entries(db, limit=limit)
    assert await audit.entries(db, limit=500) == []


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (AuditFilter(actor="ana"), ["resume", "pause"]),
        (AuditFilter(verb="pause"), ["pause"]),
        (AuditFilter(target="MAIL"), ["rotate_secret", "resume", "pause"]),
        (AuditFilter(target="webhook", actor="bo"), ["rotate_secret"]),
        (AuditFilter(actor="nobody"), []),
    ],
)
async def test_entries_are_found_by_who_what_and_to_what(db: Connection, wanted: AuditFilter, found: list[str]) -> None:
    for actor, verb, target in (
        ("ana", "pause", "topic mail"),
        ("ana", "resume", "topic mail"),
        ("bo", "rotate_secret", "webhook mailgun"),
    ):
        await audit.record(db, 1, actor=actor, verb=verb, target=target)
    page = await audit.page(db, 1, wanted, before=None, limit=10)
    assert [entry.verb for entry in page.entries] == found
    assert page.next_before is None


async def test_entries_are_found_by_time(db: Connection) -> None:
    for verb in ("first", "second", "third"):
        await audit.record(db, 1, actor="ana", verb=verb, target="everything")
    third, second, first = await audit.entries(db, 1)
    since = await audit.page(db, 1, AuditFilter(since=second.at), before=None, limit=10)
    until = await audit.page(db, 1, AuditFilter(until=second.at), before=None, limit=10)
    assert [one.no for one in since.entries] == [third.no, second.no]
    assert [one.no for one in until.entries] == [first.no]


async def test_a_page_with_a_filter_looks_at_a_bounded_part_and_says_where_to_go_on(
    db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "LOOK_AT", 3)
    for n in range(7):
        await audit.record(db, 1, actor="ana" if n == 0 else "bo", verb="pause", target=f"topic t{n}")
    pages, before = [], None
    while True:
        page = await audit.page(db, 1, AuditFilter(actor="ana"), before=before, limit=10)
        pages.append([entry.target for entry in page.entries])
        before = page.next_before
        if before is None:
            break
    assert pages == [[], [], ["topic t0"]]
