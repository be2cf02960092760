"""What the schema itself refuses, and how the tables are kept."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from headgate.store import leases
from headgate.store.connect import Connection
from tests.support.epochs import epochs_of
from tests.support.queue import Queue, new_id
from tests.support.waiting import until_async


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


async def dead_rows(db: Connection) -> int:
    if db.get_server_version().major >= 15:
        await db.execute("SELECT pg_catalog.pg_stat_force_next_flush()")
    await db.execute("SELECT pg_catalog.pg_stat_clear_snapshot()")
    found: int = await db.fetchval(
        "SELECT n_dead_tup FROM pg_catalog.pg_stat_all_tables WHERE relid = 'headgate.jobs'::regclass"
    )
    return found


NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB: dict[str, Any] = {
    "tenant_no": 1,
    "topic_no": 1,
    "rank_at": 1,
    "rank_class": -1,
    "priority": 0,
    "max_attempts": 3,
    "policy_no": 1,
    "created_at": NOW,
    "run_at": NOW,
    "state": 0,
    "attempt": 0,
    "epoch": 0,
    "payload": b"x",
}
RUNNING = JOB | {"state": 1, "attempt": 1, "epoch": 1, "owner": 1, "lease_until": NOW}
FINISHED: dict[str, Any] = {
    "tenant_no": 1,
    "topic_no": 1,
    "priority": 0,
    "max_attempts": 3,
    "policy_no": 1,
    "state": 5,
    "flags": 0,
    "created_at": NOW,
    "run_at": NOW,
    "attempt": 1,
    "epoch": 1,
}
CONTROL: dict[str, Any] = {"tenant_no": 1, "topic_no": 1, "paused": True, "paused_at": NOW}


async def insert(db: Connection, table: str, row: dict[str, Any]) -> None:
    columns = ", ".join(row)
    places = ", ".join(f"${n}" for n in range(1, len(row) + 1))
    await db.execute(f"INSERT INTO headgate.{table} ({columns}) VALUES ({places})", *row.values())


POSSIBLE = [
    ("jobs", JOB),
    ("jobs", RUNNING),
    ("jobs", RUNNING | {"attempt": 3, "epoch": 9}),
    ("jobs", RUNNING | {"flags": 16}),
    ("jobs", JOB | {"flags": 1, "payload": None}),
    *(("jobs", JOB | {"state": state}) for state in (2, 3, 4)),
    *(("archive", FINISHED | {"state": state}) for state in (5, 6, 7)),
    ("dispatch_control", CONTROL),
    ("dispatch_control", CONTROL | {"paused": False}),
    ("dispatch_control", CONTROL | {"topic_no": 0, "reason": "why", "paused_until": NOW}),
]
CHECK, UNIQUE, NOT_NULL = asyncpg.CheckViolationError, asyncpg.UniqueViolationError, asyncpg.NotNullViolationError
IMPOSSIBLE = [
    *(("jobs", JOB | {"state": state}, CHECK, "jobs_live") for state in (5, 6, 7, -1, 8)),
    ("jobs", RUNNING | {"lease_until": None}, CHECK, "jobs_lease"),
    ("jobs", RUNNING | {"owner": None}, CHECK, "jobs_lease"),
    ("jobs", JOB | {"lease_until": NOW}, CHECK, "jobs_lease"),
    ("jobs", JOB | {"owner": 1}, CHECK, "jobs_lease"),
    ("jobs", RUNNING | {"attempt": 4, "epoch": 4}, CHECK, "jobs_attempts"),
    ("jobs", RUNNING | {"attempt": -1}, CHECK, "jobs_attempts"),
    ("jobs", RUNNING | {"attempt": 2, "epoch": 1}, CHECK, "jobs_attempts"),
    ("jobs", JOB | {"attempt": 3, "epoch": 3, "state": 3}, CHECK, "jobs_attempts"),  # no attempt is left to wait for
    ("jobs", JOB | {"max_attempts": 0}, CHECK, "jobs_attempts"),
    ("jobs", JOB | {"flags": 16}, CHECK, "jobs_cancel"),  # a cancel is only requested of a running job
    ("jobs", JOB | {"payload": None}, CHECK, "jobs_payload"),
    ("jobs", JOB | {"flags": 1}, CHECK, "jobs_payload"),
    *(
        ("jobs", JOB | {name: None}, NOT_NULL, None)
        for name in ("topic_no", "rank_at", "run_at", "priority", "policy_no")
    ),
    *(("archive", FINISHED | {"state": state}, CHECK, "archive_final") for state in (0, 1, 2, 3, 4, 8)),
    ("dispatch_control", {"paused": False}, UNIQUE, "dispatch_control_pkey"),  # a second row for everything
    ("dispatch_control", CONTROL | {"tenant_no": 0}, CHECK, "dispatch_control_check"),  # a topic of no one
    ("dispatch_control", CONTROL | {"paused": False, "reason": "why"}, CHECK, "dispatch_control_check1"),
    ("dispatch_control", CONTROL | {"paused": False, "paused_until": NOW}, CHECK, "dispatch_control_check1"),
    ("dispatch_control", CONTROL | {"paused_at": None}, CHECK, "dispatch_control_check2"),
    (
        "idempotency_keys",
        {"tenant_no": 1, "topic_no": 1, "key": "", "job_id": new_id(), "body_hash": b"", "expires_at": NOW},
        CHECK,
        None,
    ),
    ("job_tags", {"tenant_no": 1, "tag": "x" * 101, "job_id": new_id()}, CHECK, None),
    ("tenants", {"name": "Acme"}, CHECK, None),
    ("topics", {"tenant_no": 99, "name": "mail"}, asyncpg.ForeignKeyViolationError, None),
    ("retry_policies", {"kind": 7, "base_ms": 1, "cap_ms": 1}, CHECK, None),
    ("retry_policies", {"kind": 0, "base_ms": 2, "cap_ms": 1}, CHECK, None),
    ("retry_policies", {"kind": 6, "base_ms": 1, "cap_ms": 1}, CHECK, None),
    ("topic_limits", {"topic_no": 1, "tenant_no": 1, "rate_count": 5}, CHECK, None),
]


def complete(table: str, row: dict[str, Any], now: datetime) -> dict[str, Any]:
    own: dict[str, dict[str, Any]] = {"jobs": {"id": new_id()}, "archive": {"id": new_id(), "finished_at": now}}
    return row | own.get(table, {})


async def test_the_schema_refuses_rows_that_cannot_be(db: Connection) -> None:
    now = datetime.now(UTC)
    for table, row in POSSIBLE:
        await insert(db, table, complete(table, row, now))
        if table == "dispatch_control":
            await db.execute("DELETE FROM headgate.dispatch_control WHERE tenant_no > 0")
    for table, row, error, constraint in IMPOSSIBLE:
        with pytest.raises(error) as caught:
            await insert(db, table, complete(table, row, now))
        if constraint is not None:
            assert caught.value.constraint_name == constraint, row


async def test_an_archive_row_needs_a_day(db: Connection) -> None:
    row = complete("archive", FINISHED, datetime(2001, 1, 1, tzinfo=UTC))
    with pytest.raises(CHECK, match="no partition"):
        await insert(db, "archive", row)


HOT = ("jobs", "payloads", "archive", "job_events", "flow_deltas", "idempotency_keys", "resent_ids", "job_tags")


async def test_the_hot_table_has_four_indexes_and_no_more(db: Connection) -> None:
    rows = await db.fetch(
        "SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid), pg_get_expr(indpred, indrelid)"
        " FROM pg_catalog.pg_index WHERE indrelid = 'headgate.jobs'::regclass ORDER BY 1"
    )
    assert [row[0] for row in rows] == [
        "headgate.jobs_claim_order",
        "headgate.jobs_due",
        "headgate.jobs_pkey",
        "headgate.jobs_running",
    ]
    columns = [row[1].partition("USING btree ")[2].partition(" WHERE")[0] for row in rows]
    assert columns == ["(topic_no, rank_class, rank_at)", "(run_at)", "(tenant_no, id)", "(claimed_at)"]
    assert [row[2] for row in rows][:2] == ["(state = 0)", "(state = ANY (ARRAY[2, 3]))"]
    assert not any("lease_until" in row[1] for row in rows)


async def test_hot_tables_have_no_foreign_keys_and_no_triggers(db: Connection) -> None:
    for table in HOT:
        keys = await db.fetch(
            "SELECT conname FROM pg_catalog.pg_constraint WHERE contype = 'f'"
            " AND $1::text::regclass IN (conrelid, confrelid)",
            f"headgate.{table}",
        )
        assert keys == [], table
        assert not await db.fetchval(
            "SELECT count(*) FROM pg_catalog.pg_trigger WHERE tgrelid = $1::text::regclass", f"headgate.{table}"
        )


async def test_storage_settings_are_as_intended(db: Connection) -> None:
    rows = await db.fetch(
        "SELECT relname, unnest(reloptions) AS option FROM pg_catalog.pg_class"
        " WHERE relnamespace = 'headgate'::regnamespace AND relkind = 'r' AND NOT relispartition"
    )
    found: dict[str, dict[str, str]] = {}
    for relname, option in rows:
        name, _, value = option.partition("=")
        found.setdefault(relname, {})[name] = value
    assert found["jobs"] == {
        "fillfactor": "90",
        "autovacuum_vacuum_scale_factor": "0",
        "autovacuum_vacuum_threshold": "5000",
        "autovacuum_vacuum_cost_delay": "0",
        "autovacuum_vacuum_insert_scale_factor": "0",
        "autovacuum_vacuum_insert_threshold": "100000",
        "autovacuum_analyze_scale_factor": "0",
        "autovacuum_analyze_threshold": "50000",
        "vacuum_truncate": "off",
    }
    assert found["flow_deltas"]["vacuum_truncate"] == "off"
    assert (found["state_counts"]["fillfactor"], found["flow_buckets"]["fillfactor"]) == ("50", "70")
    storage = await db.fetch(
        "SELECT attrelid::regclass::text || '.' || attname FROM pg_catalog.pg_attribute"
        " WHERE attstorage = 'e' AND attrelid IN ('headgate.payloads'::regclass, 'headgate.archive'::regclass)"
        " ORDER BY 1"
    )
    assert [row[0] for row in storage] == ["headgate.archive.result", "headgate.payloads.payload"]


async def test_renewals_are_hot(queue: Queue) -> None:
    """A renewal touches no index: were lease_until indexed, every beat would cost four index entries.

    PostgreSQL needs room on the row's own page for that. A claim fills its pages to the fillfactor, so the first rounds
    move most rows once; from then on there is room.
    """
    jobs = await queue.add(200)
    await queue.claim(200)
    tenant, (epoch, *_) = await queue.tenant_no(), await epochs_of(queue.db, jobs)

    async def renew_all() -> None:
        for start in range(0, 200, 20):
            held = leases.Held(tenant_no=tenant, ids=jobs[start : start + 20], epochs=[epoch] * 20, lease_ms=120_000)
            assert await leases.renew(queue.db, [held]) == {}

    async def updates() -> tuple[int, int]:
        await dead_rows(queue.db)  # for what it flushes
        found = await queue.db.fetchrow(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_catalog.pg_stat_all_tables WHERE relid = 'headgate.jobs'::regclass"
        )
        return found[0], found[1]

    for _ in range(4):
        await renew_all()

    async def counted(at_least: int) -> tuple[int, int]:
        async def known() -> bool:
            return (await updates())[0] >= at_least

        await until_async(known, "PostgreSQL has counted the updates")
        return await updates()

    before = await counted(200 + 4 * 200)  # the claim's, and those of four rounds
    for _ in range(4):
        await renew_all()
    after = await counted(before[0] + 4 * 200)
    assert after[0] - before[0] == 800
    assert after[1] - before[1] >= 760
