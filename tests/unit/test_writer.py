"""Group writing and its admission: what is taken, what is refused, whose turn it is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from headgate.dispatch.writer import (
    LONGEST_HINT_MS,
    SHORTEST_HINT_MS,
    Account,
    GroupWriter,
    TenantAccount,
)
from headgate.domain.errors import HeadgateError, InternalError, Overloaded, ShuttingDown, StoreUnavailable


class Rows:
    """A write of so many rows of ten bytes."""

    def __init__(self, rows: int, name: str = "") -> None:
        self.rows, self.size, self.name = rows, rows * 10, name
        self.failure: HeadgateError | None = None

    def fail(self, error: HeadgateError) -> None:
        self.failure = error


class Database:
    """Takes a flush when the test lets it; each takes `seconds` of its clock."""

    def __init__(self) -> None:
        self.at, self.seconds = 100.0, 0.1
        self.flushes: list[list[Rows]] = []
        self.error: Exception | None = None
        self._free = asyncio.Semaphore(0)
        self.asked = asyncio.Event()

    async def write(self, writes: list[Rows]) -> None:
        self.asked.set()
        await self._free.acquire()
        self.at += self.seconds
        self.flushes.append(writes)
        if self.error is not None:
            raise self.error

    def allow(self, flushes: int) -> None:
        for _ in range(flushes):
            self._free.release()


@asynccontextmanager
async def writing(
    database: Database, *, max_rows: int = 2_000, queue_rows: int = 50_000, queue_bytes: int = 64_000_000
) -> AsyncIterator[GroupWriter[Rows]]:
    """A writer that runs, with one row in flight, so that everything else waits."""
    writer: GroupWriter[Rows] = GroupWriter(
        "rows",
        database.write,
        max_rows=max_rows,
        queue_rows=queue_rows,
        queue_bytes=queue_bytes,
        now=lambda: database.at,
    )
    running = asyncio.create_task(writer.run())
    writer.put(Rows(1, "first"))
    await asyncio.wait_for(database.asked.wait(), 60)
    try:
        yield writer
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_what_waits_is_bounded_in_rows_and_in_bytes_and_the_rest_is_refused() -> None:
    database = Database()
    async with writing(database, queue_rows=100, queue_bytes=800) as writer:
        writer.put(Rows(79))
        with pytest.raises(Overloaded, match="79 rows wait") as caught:
            writer.put(Rows(22))
        assert caught.value.code == "overloaded"
        assert caught.value.retry_after_ms >= SHORTEST_HINT_MS
        with pytest.raises(Overloaded):
            writer.put(Rows(2))  # there is space for its rows, but not for its bytes
        writer.put(Rows(1))
        assert writer.waiting_rows == 80
        assert writer.rows_refused == 24


async def test_one_caller_has_at_most_as_much_as_is_left_for_others() -> None:
    async with writing(Database(), queue_rows=100) as writer:
        greedy, second, third = Account[Rows](), Account[Rows](), Account[Rows]()

        def fill(account: Account[Rows]) -> int:
            with suppress(Overloaded):
                for _ in range(200):
                    writer.put(Rows(1), account)
            return account.rows

        assert fill(greedy) == 50
        assert fill(second) == 25
        writer.put(Rows(10), third)  # someone new is let in, however greedy the others are
        with pytest.raises(Overloaded, match="of this caller"):
            writer.put(Rows(1), greedy)


async def test_however_many_sessions_a_tenant_has_they_have_at_most_half_of_the_queue() -> None:
    async with writing(Database(), queue_rows=900) as writer:
        crowd: TenantAccount[Rows] = TenantAccount()
        sessions = [Account(crowd) for _ in range(20)]

        def fill(account: Account[Rows]) -> int:
            with suppress(Overloaded):
                for _ in range(900):
                    writer.put(Rows(1), account)
            return account.rows

        assert fill(sessions[0]) == 300  # one alone has a third
        with pytest.raises(Overloaded, match="of this caller"):
            writer.put(Rows(1), sessions[0])
        assert [fill(session) for session in sessions[1:4]] == [100, 34, 11]  # and a new one is let in
        for session in sessions:
            fill(session)
        assert crowd.rows <= 450
        with pytest.raises(Overloaded, match="of this tenant"):
            writer.put(Rows(10), Account(crowd))
        writer.put(Rows(400), Account(TenantAccount[Rows]()))  # another tenant's session has as much room as they


async def test_flushes_are_shared_among_tenants_and_then_among_their_sessions() -> None:
    database = Database()
    async with writing(database, max_rows=8) as writer:
        crowd, other = TenantAccount[Rows](), TenantAccount[Rows]()
        many = [Account(crowd) for _ in range(4)]
        for number in range(4):
            for place, session in enumerate(many):
                writer.put(Rows(2, f"crowd {place}.{number}"), session)
        busy, calm = Account(other), Account(other)
        for number in range(3):
            writer.put(Rows(2, f"busy {number}"), busy)
        writer.put(Rows(1, "calm"), calm)
        database.allow(4)
        while len(database.flushes) < 4:
            await asyncio.sleep(0)
        assert [[rows.name for rows in flush] for flush in database.flushes[1:]] == [
            ["crowd 0.0", "crowd 1.0", "busy 0", "calm"],
            ["crowd 2.0", "crowd 3.0", "busy 1", "busy 2"],
            ["crowd 0.1", "crowd 1.1", "crowd 2.1", "crowd 3.1"],
        ]


async def test_flushes_take_from_callers_in_turns() -> None:
    database = Database()
    async with writing(database, max_rows=4) as writer:
        greedy, polite = Account[Rows](), Account[Rows]()
        for number in range(5):
            writer.put(Rows(2, f"greedy {number}"), greedy)
        writer.put(Rows(1, "polite"), polite)
        database.allow(4)
        while len(database.flushes) < 4:
            await asyncio.sleep(0)
        assert [[rows.name for rows in flush] for flush in database.flushes] == [
            ["first"],
            ["greedy 0", "polite"],
            ["greedy 1", "greedy 2"],
            ["greedy 3", "greedy 4"],
        ]
        assert (greedy.rows, greedy.size, polite.rows, writer.waiting_rows) == (0, 0, 0, 0)


async def test_turns_are_by_rows_so_that_calls_of_one_job_keep_up_with_frames_of_many() -> None:
    database = Database()
    async with writing(database, max_rows=100) as writer:
        streams = [Account[Rows]() for _ in range(4)]
        calls = Account[Rows]()
        for number in range(10):
            for name, stream in enumerate(streams):
                writer.put(Rows(10, f"frame {name} {number}"), stream)
        for number in range(50):
            writer.put(Rows(1, f"call {number}"), calls)
        database.allow(5)
        while len(database.flushes) < 5:
            await asyncio.sleep(0)
        shares = [Counter(rows.name.split()[0] for rows in flush) for flush in database.flushes[1:]]
        # A fifth of the rows of each flush, and all of them once they are less than that.
        assert [share["call"] for share in shares] == [20, 20, 10, 0]
        sent = [rows.name for flush in database.flushes for rows in flush]
        for of in ("call", *(f"frame {name}" for name in range(4))):
            mine = [int(name.rpartition(" ")[2]) for name in sent if name.startswith(of)]
            assert mine == sorted(mine), "each caller's writes in their order"


async def test_who_has_little_waits_for_no_turn_and_a_large_write_is_not_passed_over_forever() -> None:
    database = Database()
    async with writing(database, max_rows=100) as writer:
        streams = [Account[Rows]() for _ in range(6)]
        small = [Account[Rows]() for _ in range(3)]
        for number in range(3):
            for name, stream in enumerate(streams):
                writer.put(Rows(90, f"frame {name} {number}"), stream)
        for flush in range(6):
            for name, account in enumerate(small):
                writer.put(Rows(8, f"small {name} {flush}"), account)
            database.allow(1)
            while len(database.flushes) <= flush:
                await asyncio.sleep(0)
        database.allow(1)
        while len(database.flushes) < 7:
            await asyncio.sleep(0)
        flushes = [[rows.name for rows in flush] for flush in database.flushes[1:]]
        frames = [[name for name in flush if name.startswith("frame")] for flush in flushes]
        assert [name for names in frames for name in names] == [f"frame {name} 0" for name in range(6)]
        assert all(any(name.startswith("small") for name in flush) for flush in flushes)


async def test_the_hint_follows_the_pace_of_the_database_and_an_outage() -> None:
    database = Database()
    async with writing(database, max_rows=10, queue_rows=1_000) as writer:
        assert writer.retry_after_ms() == SHORTEST_HINT_MS
        writer.put(Rows(10))
        database.allow(2)  # 1 row, then 10 rows, each in 0.1 s
        while len(database.flushes) < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        for _ in range(11):
            writer.put(Rows(10))
        await asyncio.sleep(0)
        pace = 0.8 * 10 + 0.2 * 100
        assert writer.waiting_rows == 100
        assert writer.retry_after_ms() == pytest.approx(1000 * 50 / pace, abs=1)
        database.at += 60  # the flush in flight has no answer for a minute
        assert writer.retry_after_ms() == LONGEST_HINT_MS


async def test_what_is_written_by_another_way_counts_while_it_waits() -> None:
    async with writing(Database(), queue_rows=100) as writer:
        account = Account[Rows]()
        with writer.holding(60, 600, account):
            with pytest.raises(Overloaded):
                writer.put(Rows(41))
            with pytest.raises(Overloaded), writer.holding(1, 10, account):
                pytest.fail("was let in")
        assert (writer.waiting_rows, account.rows, account.size) == (0, 0, 0)
        writer.put(Rows(41))


async def test_a_failed_flush_fails_its_own_writes_and_leaves_the_accounts_right() -> None:
    database = Database()
    async with writing(database, max_rows=2) as writer:
        account = Account[Rows]()
        mine = [Rows(2), Rows(2)]
        for rows in mine:
            writer.put(rows, account)
        database.allow(1)
        database.error = StoreUnavailable("away")
        database.allow(1)
        while len(database.flushes) < 2:
            await asyncio.sleep(0)
        database.error = None
        await asyncio.sleep(0)
        assert isinstance(mine[0].failure, StoreUnavailable)
        assert mine[1].failure is None
        database.allow(1)
        while len(database.flushes) < 3:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (account.rows, writer.waiting_rows) == (0, 0)


@pytest.mark.req("B5")
async def test_a_bug_in_one_flush_fails_its_callers_is_logged_and_the_writer_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Deaf(Rows):
        """Cannot even be notified."""

        def fail(self, error: HeadgateError) -> None:
            raise ZeroDivisionError

    database = Database()
    async with writing(database) as writer:
        bad = [Rows(1), Deaf(1), Rows(2)]
        for rows in bad:
            writer.put(rows)
        database.allow(1)
        while len(database.flushes) < 1:
            await asyncio.sleep(0)
        database.error = TypeError("of the payload 0xdeadbeef")
        database.allow(1)
        while len(database.flushes) < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        for rows in (bad[0], bad[2]):
            assert isinstance(rows.failure, InternalError)
            assert rows.failure.code == "internal"
            assert "TypeError" in str(rows.failure)
            assert "deadbeef" not in str(rows.failure), "a bug's own words may be somebody's payload"
        assert "flush_failed writer=rows rows=4" in caplog.text
        assert "Traceback" in caplog.text
        assert writer.faults == 1
        database.error = None
        good = Rows(5)
        writer.put(good)
        database.allow(1)
        while writer.rows_written < 1 + 4 + 5:
            await asyncio.sleep(0)
        assert (good.failure, writer.waiting_rows) == (None, 0)


async def test_after_a_bug_in_the_loop_itself_no_caller_waits_and_the_writer_can_run_again() -> None:
    faulty = True

    def rest(_rows: int, _spent: float) -> float:
        return 1 / 0 if faulty else 0.0

    database = Database()
    writer: GroupWriter[Rows] = GroupWriter("rows", database.write, max_rows=1, rest=rest)
    running = asyncio.create_task(writer.run())
    rows = [Rows(1), Rows(1)]
    for one in rows:
        writer.put(one)
    database.allow(1)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(running, 5)
    assert rows[0].failure is None
    assert isinstance(rows[1].failure, InternalError)
    assert (writer.waiting_rows, writer.faults) == (0, 1)
    faulty = False
    running = asyncio.create_task(writer.run())
    writer.put(after := Rows(1))
    writer.stop()
    database.allow(1)
    await asyncio.wait_for(running, 5)
    assert (after.failure, writer.rows_written) == (None, 1)


async def test_a_closed_writer_refuses_and_writes_what_it_has() -> None:
    database = Database()
    writer: GroupWriter[Rows] = GroupWriter("rows", database.write, max_rows=2)
    running = asyncio.create_task(writer.run())
    accounts = [Account[Rows]() for _ in range(3)]
    for account in accounts:
        writer.put(Rows(2), account)
    writer.stop()
    with pytest.raises(ShuttingDown):
        writer.put(Rows(1), accounts[0], admitted=True)
    database.allow(3)
    await asyncio.wait_for(running, 60)
    assert writer.rows_written == 6


async def test_a_writer_that_rests_for_others_counts_that_as_its_pace_and_fails_what_waits_when_it_is_ended() -> None:
    database = Database()
    resting = asyncio.Event()

    def rest(rows: int, spent: float) -> float:
        assert spent == pytest.approx(database.seconds)
        resting.set()
        return 60.0 if rows > 1 else 0.0

    writer: GroupWriter[Rows] = GroupWriter("rows", database.write, max_rows=5, rest=rest, now=lambda: database.at)
    running = asyncio.create_task(writer.run())
    written, waits = Rows(5), Rows(5)
    writer.put(written)
    writer.put(waits)
    database.allow(2)
    await asyncio.wait_for(resting.wait(), 60)
    await asyncio.sleep(0)
    assert len(database.flushes) == 1  # the second waits until the rest is over
    database.at += 9.9
    assert writer.retry_after_ms() == LONGEST_HINT_MS
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert written.failure is None  # it was written, and has its answer
    assert waits.failure is not None
    assert waits.failure.code == "outcome_unknown"


async def test_a_writer_that_rests_for_others_stops_resting_when_it_is_closed() -> None:
    database, resting = Database(), asyncio.Event()

    def rest(_rows: int, _spent: float) -> float:
        resting.set()
        return 3_600.0

    writer: GroupWriter[Rows] = GroupWriter("rows", database.write, max_rows=5, rest=rest)
    running = asyncio.create_task(writer.run())
    waits = Rows(5)
    writer.put(Rows(5))
    writer.put(waits)
    database.allow(2)
    await asyncio.wait_for(resting.wait(), 60)
    await asyncio.sleep(0)
    writer.stop()
    await asyncio.wait_for(running, 60)
    assert (len(database.flushes), waits.failure) == (2, None)
