"""Log lines of jobs in the database: who may add them, what is kept, what is read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from headgate.api.http.routes.job_logs import LogLineIn, attempts_of
from headgate.dispatch.delivery import ControlFrame
from headgate.dispatch.job_logs import MOST_BYTES, MOST_LINES, LogWriter
from headgate.dispatch.session_rules import Hello, OutcomeFrame
from headgate.dispatch.worker_calls import WorkerCalls
from headgate.domain import limits
from headgate.domain.errors import HeadgateError, StoreBusy, StoreUnavailable
from headgate.domain.identity import Identity, Scope
from headgate.domain.job_logs import AttemptLines, LineBuffer, LogLine, StoredLine, log_line
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed
from headgate.store import reads, verbs
from headgate.store.connect import Connection
from headgate.store.job_logs import BEGINNING, add_log_lines, forget_log_lines, read_log_lines, read_newest_lines
from tests.integration.test_dependency_races import blocked_on_a_lock
from tests.support.dispatch_waits import SOON
from tests.support.dispatching import Instance
from tests.support.queue import Clock, Queue, links, new_id, stranger
from tests.support.waiting import until_async

OURS = Identity(tenant="acme", subject="ours", scopes=frozenset(Scope))
DIES = Failed(error=ErrorInfo(type="Fatal"), permanent=True)


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


def line(seq: int, text: str = "said") -> LogLine:
    return LogLine(seq, 1_700_000_000_000_000 + seq, 2, "app", text)


async def add(queue: Queue, job_id: UUID, epoch: int, *lines: LogLine, attempt: int = 0) -> int:
    return await add_log_lines(queue.db, await queue.tenant_no(), [AttemptLines(job_id, epoch, attempt, lines)])


async def read(queue: Queue, job_id: UUID, *, limit: int = 1_000, attempt: int | None = None) -> Sequence[StoredLine]:
    tenant_no = await queue.tenant_no()
    since = (await reads.get(queue.db, tenant_no, job_id)).created_at
    return (await read_log_lines(queue.db, tenant_no, job_id, since=since, attempt=attempt, limit=limit)).lines


async def running(queue: Queue) -> tuple[UUID, int]:
    await queue.add()
    claimed = await queue.claim()
    return claimed.ids[0], claimed.epochs[0]


# ---------------------------------------------------------------------- whose lines


async def test_lines_are_read_in_the_order_of_their_numbers_with_the_attempt_of_the_job(queue: Queue) -> None:
    job_id, epoch = await running(queue)
    assert await add(queue, job_id, epoch, line(2, "second")) == 1
    assert await add(queue, job_id, epoch, line(1, "first"), line(3, "third")) == 2
    assert await add(queue, job_id, epoch, line(3, "again")) == 0  # sent twice: the first one stays
    found = await read(queue, job_id)
    assert [one.text for one in found] == ["first", "second", "third"]
    assert {(one.epoch, one.attempt, one.logger, one.level.label, one.left_out) for one in found} == {
        (epoch, 1, "app", "info", 0)
    }


@pytest.mark.parametrize("outcome", [Completed(), DIES, Abandon()], ids=["completed", "dead", "abandoned"])
async def test_lines_that_come_after_the_outcome_of_their_attempt_are_kept(queue: Queue, outcome: object) -> None:
    job_id, epoch = await running(queue)
    await queue.settle((job_id, epoch, outcome))  # type: ignore[arg-type]
    assert await add(queue, job_id, epoch, line(1), attempt=1) == 1
    assert [(one.epoch, one.attempt) for one in await read(queue, job_id)] == [(epoch, 1)]


async def test_a_stale_worker_adds_nothing_to_the_attempt_of_its_successor(queue: Queue) -> None:
    job_id, stale = await running(queue)
    await queue.settle((job_id, stale, Abandon()))
    (present,) = (await queue.claim()).epochs
    assert present > stale
    await add(queue, job_id, present, line(1, "the successor"))
    await add(queue, job_id, stale, line(1, "the stale one"), attempt=1)
    await add(queue, job_id, stale, line(2, "without its attempt"))
    assert [(one.epoch, one.attempt, one.text) for one in await read(queue, job_id)] == [
        (stale, 1, "the stale one"),
        (stale, 0, "without its attempt"),
        (present, 1, "the successor"),
    ]


async def test_an_epoch_that_was_never_given_out_and_a_job_that_is_not_there_get_no_lines(queue: Queue) -> None:
    job_id, epoch = await running(queue)
    assert await add(queue, job_id, epoch + 1, line(1)) == 0
    assert await add(queue, new_id(), epoch, line(1)) == 0
    await queue.settle((job_id, epoch, Completed()))
    assert await add(queue, job_id, epoch + 1, line(1)) == 0
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.job_logs") == 0


async def test_a_job_of_another_tenant_gets_no_lines(queue: Queue) -> None:
    job_id, epoch = await running(queue)
    other = Queue(queue.db, tenant="other")
    assert await add(other, job_id, epoch, line(1)) == 0
    assert await read(queue, job_id) == []


async def test_one_bad_attempt_costs_its_neighbours_nothing(queue: Queue) -> None:
    job_id, epoch = await running(queue)
    given = [AttemptLines(new_id(), 1, 0, [line(1)]), AttemptLines(job_id, epoch, 0, [line(1)])]
    assert await add_log_lines(queue.db, await queue.tenant_no(), given) == 1
    assert len(await read(queue, job_id)) == 1


async def test_adding_lines_waits_for_no_lock_of_a_running_job_and_holds_none(queue: Queue, database: str) -> None:
    """Its outcome may be on its way at this very moment: neither must meet the other."""
    job_id, epoch = await running(queue)
    async with asyncio.timeout(SOON.total_seconds()):
        async with stranger(database, "SELECT FROM headgate.jobs WHERE id = $1 FOR UPDATE", job_id):
            assert await add(queue, job_id, epoch, line(1)) == 1
        async with queue.db.transaction():
            await add(queue, job_id, epoch, line(2))
            async with stranger(database, "SELECT 1 FROM headgate.jobs WHERE id = $1 FOR UPDATE NOWAIT", job_id):
                pass


async def test_finished_jobs_are_locked_in_the_order_of_their_ids(queue: Queue, database: str) -> None:
    """As a discard or a redrive of the same jobs locks them: in another order, they would deadlock."""
    jobs = sorted([await running(queue) for _ in range(2)], reverse=True)
    await queue.settle(*((job_id, epoch, DIES) for job_id, epoch in jobs))
    given = [AttemptLines(job_id, epoch, 1, [line(1)]) for job_id, epoch in jobs]
    tenant_no, (last, first) = await queue.tenant_no(), (job_id for job_id, _ in jobs)
    async with asyncio.timeout(SOON.total_seconds()), links(database, 1) as (other,):
        async with stranger(database, "SELECT FROM headgate.archive WHERE id = $1 FOR UPDATE", first):
            adding = asyncio.create_task(add_log_lines(queue.db, tenant_no, given))
            await until_async(lambda: blocked_on_a_lock(other), "it waits for the lock")
            # It waits for the first, and has not locked the last one yet.
            await other.fetch("SELECT FROM headgate.archive WHERE id = $1 FOR UPDATE NOWAIT", last)
        assert await adding == 2


async def test_lines_of_a_finished_job_are_taken_for_fifty_minutes(queue: Queue, clock: Clock) -> None:
    """Its lines are removed with it if they were stored within an hour; servers may have clocks of their own."""
    job_id, epoch = await running(queue)
    await queue.settle((job_id, epoch, DIES))
    await clock.advance(minutes=49)
    assert await add(queue, job_id, epoch, line(1)) == 1
    await clock.advance(minutes=2)
    assert await add(queue, job_id, epoch, line(2)) == 0


@pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
async def test_finished_jobs_are_looked_up_in_two_days_at_most(queue: Queue, db: Connection, plan: str) -> None:
    job_id, epoch = await running(queue)
    await db.execute("SELECT headgate.ensure_partitions_v1(10)")
    await db.execute(f"SET plan_cache_mode = {plan}")
    async with db.transaction():
        assert await add(queue, job_id, epoch, line(1)) == 1
        read = await db.fetch(
            "SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_inherits h ON h.inhrelid = i.indrelid "
            "WHERE h.inhparent = 'headgate.archive'::regclass AND pg_stat_get_xact_numscans(i.indexrelid) > 0"
        )
    assert 1 <= len(read) <= 2


# ---------------------------------------------------------------------- bounds


async def test_of_a_job_that_is_given_back_without_end_the_newest_hundred_epochs_have_lines(queue: Queue) -> None:
    job_id, epoch = await running(queue)
    other, other_epoch = await running(queue)
    await add(queue, other, other_epoch, line(1))
    for nth in range(100):
        await add(queue, job_id, epoch + nth, line(1), line(2), attempt=1)
        await queue.db.execute("UPDATE headgate.jobs SET epoch = epoch + 1 WHERE id = $1", job_id)
    assert len(await read(queue, job_id)) == 200
    await add(queue, job_id, epoch + 100, line(1), line(2), attempt=1)
    assert [one.epoch for one in (await read(queue, job_id))[::2]] == [epoch + nth for nth in range(1, 101)]
    assert len(await read(queue, other)) == 1


@pytest.mark.parametrize("size", [10, 4_000], ids=["short", "long"])
async def test_of_a_long_log_the_database_keeps_what_the_buffer_keeps(queue: Queue, size: int) -> None:
    """The numbers are written in two places, and mean the same."""
    job_id, epoch = await running(queue)
    buffer = LineBuffer()
    for first in range(1, 1_001, 100):
        lines = [line(seq, "x" * size) for seq in range(first, first + 100)]
        buffer.extend(lines)
        await add(queue, job_id, epoch, *lines)
    found = await read(queue, job_id)
    assert [one.seq for one in found] == [one.seq for one in buffer.lines()]
    assert found[0].seq == 1
    assert found[-1].seq == 1_000
    assert len(found) <= 200
    assert sum(len(one.text) for one in found) <= 65_536
    assert sum(one.left_out for one in found) == 1_000 - len(found)


async def test_the_bound_is_of_each_attempt(queue: Queue) -> None:
    job_id, first = await running(queue)
    await add(queue, job_id, first, *(line(seq) for seq in range(1, 201)), attempt=1)
    await queue.settle((job_id, first, Abandon()))
    (second,) = (await queue.claim()).epochs
    await add(queue, job_id, second, *(line(seq) for seq in range(1, 301)))
    found = await read(queue, job_id)
    assert [sum(one.epoch == epoch for one in found) for epoch in (first, second)] == [200, 200]


async def test_the_newest_lines_of_one_attempt_are_read_without_those_of_later_ones(queue: Queue) -> None:
    job_id, first = await running(queue)
    await add(queue, job_id, first, *(line(seq) for seq in range(1, 6)), attempt=1)
    await queue.settle((job_id, first, Abandon()))
    (second,) = (await queue.claim()).epochs
    await add(queue, job_id, second, line(1), line(2), attempt=2)
    tenant_no = await queue.tenant_no()
    since = (await reads.get(queue.db, tenant_no, job_id)).created_at
    for attempt, limit, expected in ((1, 3, [3, 4, 5]), (1, 9, [1, 2, 3, 4, 5]), (2, 1, [2])):
        page = await read_newest_lines(queue.db, tenant_no, job_id, since=since, attempt=attempt, limit=limit)
        assert ([one.seq for one in page.lines], page.more) == (expected, limit < 9)


async def test_what_cannot_be_stored_as_text_is_replaced(queue: Queue) -> None:
    job_id, epoch = await running(queue)
    texts = ["nul \x00", "half \ud800", "\x1b[31mred\x1b[0m", "ü" * 5_000, "two\nlines"]
    await add(
        queue, job_id, epoch, *(log_line(seq, -5, 2, "a\x00", text, now_us=7) for seq, text in enumerate(texts, 1))
    )
    found = await read(queue, job_id)
    assert [one.text for one in found[:3]] == ["nul \ufffd", "half \ufffd", "red"]
    assert found[3].text.endswith("more characters]")
    assert len(found[3].text.encode()) <= 4_096
    assert found[4].text == "two\nlines"
    assert {one.at.year for one in found} == {1970}
    assert {one.logger for one in found} == {"a\ufffd"}


# ---------------------------------------------------------------------- reading


async def test_pages_follow_each_other_without_a_gap_or_a_line_twice(queue: Queue) -> None:
    job_id, epoch = await running(queue)
    await add(queue, job_id, epoch, *(line(seq) for seq in (1, 2, 5, 6, 9)))
    tenant_no, after, found = await queue.tenant_no(), (0, 0), list[StoredLine]()
    since = (await reads.get(queue.db, tenant_no, job_id)).created_at
    while True:
        page = await read_log_lines(queue.db, tenant_no, job_id, since=since, after=after, limit=2)
        found += page.lines
        if not page.more:
            break
        after = (page.lines[-1].epoch, page.lines[-1].seq)
    assert [(one.seq, one.left_out) for one in found] == [(1, 0), (2, 0), (5, 2), (6, 0), (9, 2)]
    newest = await read_newest_lines(queue.db, tenant_no, job_id, since=since, limit=2)
    assert [(one.seq, one.left_out) for one in newest.lines] == [(6, 0), (9, 2)]
    assert newest.more


async def test_a_job_that_was_submitted_again_has_none_of_the_lines_of_the_first_one(
    queue: Queue, clock: Clock
) -> None:
    job_id, epoch = await running(queue)
    await add(queue, job_id, epoch, line(1))
    await clock.advance(seconds=1)
    tenant_no, now = await queue.tenant_no(), await queue.db.fetchval("SELECT headgate.clock_v1()")
    page = await read_log_lines(queue.db, tenant_no, job_id, since=now, limit=10)
    assert page.lines == []
    assert (await read_newest_lines(queue.db, tenant_no, job_id, since=now, limit=10)).lines == []


async def test_discarding_a_job_removes_its_lines_at_once(queue: Queue) -> None:
    job_id, epoch = await running(queue)
    await queue.settle((job_id, epoch, DIES))
    await add(queue, job_id, epoch, line(1))
    await verbs.discard(queue.db, await queue.tenant_no(), [job_id])
    assert await queue.db.fetchval("SELECT count(*) FROM headgate.job_logs") == 0
    assert await add(queue, job_id, epoch, line(2)) == 0


async def test_retention_spares_lines_of_a_job_that_was_submitted_with_the_same_id_since(
    queue: Queue, clock: Clock, db: Connection
) -> None:
    job_id, epoch = await running(queue)
    await queue.settle((job_id, epoch, DIES))
    finished = (await reads.get(db, await queue.tenant_no(), job_id)).finished_at
    await add(queue, job_id, epoch, line(1, "old"))
    await clock.advance(hours=25)
    assert await add(queue, job_id, epoch, line(2)) == 0  # too late: it would not be removed
    await db.execute(
        "INSERT INTO headgate.job_logs (tenant_no, job_id, epoch, seq, attempt, at, stored_at, level, logger, line) "
        "SELECT tenant_no, job_id, epoch + 1024, 1, 1, at, headgate.clock_v1(), 2, '', 'of the next life' "
        "FROM headgate.job_logs"
    )
    await db.execute(
        "SELECT headgate.forget_jobs_v1($1, $2, $3, $4, $5, $5)",
        *([await queue.tenant_no()], [job_id], [0], [6], [finished]),
    )
    assert [row[0] for row in await db.fetch("SELECT line FROM headgate.job_logs")] == ["of the next life"]


async def test_upkeep_removes_old_lines_of_jobs_that_are_gone_and_no_others(queue: Queue, clock: Clock) -> None:
    jobs = [await running(queue) for _ in range(4)]
    for job_id, epoch in jobs:
        await add(queue, job_id, epoch, line(1), line(2))
    await queue.settle((*jobs[1], Completed()))
    gone = [jobs[2][0], jobs[3][0]]
    await queue.db.execute("DELETE FROM headgate.jobs WHERE id = ANY ($1)", gone)  # as if its lines came too late
    after, forgotten, rounds = BEGINNING, 0, 0
    for hours in (0, 2):
        await clock.advance(hours=hours)
        while True:
            count, after = await forget_log_lines(queue.db, after, limit=2)
            forgotten, rounds = forgotten + count, rounds + 1
            if after == BEGINNING:
                break
        assert forgotten == (4 if hours else 0)
    assert rounds == 6  # two jobs each, and the end
    left = await queue.db.fetch("SELECT DISTINCT job_id FROM headgate.job_logs")
    assert {row[0] for row in left} == {job_id for job_id, _ in jobs[:2]}


# ---------------------------------------------------------------------- sessions, calls, the writer


async def test_a_session_adds_lines_only_to_attempts_that_it_holds(one: Instance) -> None:
    session, _ = await one.rules.open(OURS, Hello(worker_id="w"))
    ids = await one.submit(2)
    await one.rules.request_jobs(session, ["mail"], 1)
    async with asyncio.timeout(SOON.total_seconds()):
        delivery = await session.next_part()
    (mine,), (epoch,) = delivery.ids, delivery.epochs  # type: ignore[union-attr]
    (other,) = set(ids) - {mine}
    given = [AttemptLines(mine, epoch, 0, [line(1)]), AttemptLines(mine, epoch - 1, 0, [line(1)])]
    assert one.rules.log(session, [*given, AttemptLines(other, epoch, 0, [line(1)])]) is None
    assert await one.rules.logs.run_once() == 1
    async with one.store.lane("tick").use() as db:
        rows = await db.fetch("SELECT job_id, epoch FROM headgate.job_logs")
    assert [tuple(row) for row in rows] == [(mine, epoch)]


async def test_a_heartbeat_call_adds_lines_to_jobs_that_it_renews(one: Instance) -> None:
    calls = WorkerCalls(one.rules)
    await one.submit(1)
    async with asyncio.timeout(SOON.total_seconds()):
        with await calls.claim(OURS, "w", ["mail"]) as pulled:
            pulled.written()
    (job_id,), (epoch,) = pulled.deliveries[0].ids, pulled.deliveries[0].epochs
    for given in (epoch, epoch - 1):
        logs = [AttemptLines(job_id, given, 0, [line(1)])]
        await calls.heartbeat(OURS, "w", [job_id], [given], lease_seconds=0, progress=[], logs=logs)
    assert await one.rules.logs.run_once() == 1


async def test_no_outcome_waits_while_lines_cannot_be_written(one: Instance) -> None:
    session, _ = await one.rules.open(OURS, Hello(worker_id="w"))
    await one.submit(1)
    await one.rules.request_jobs(session, ["mail"], 1)
    async with asyncio.timeout(SOON.total_seconds()):
        delivery = await session.next_part()
        (job_id,), (epoch,) = delivery.ids, delivery.epochs  # type: ignore[union-attr]
        async with one.store.lane("upkeep").use():  # it is busy
            assert one.rules.log(session, [AttemptLines(job_id, epoch, 0, [line(1)])]) is None
            writing = asyncio.create_task(one.rules.logs.run_once())
            outcomes = OutcomeFrame(
                seq=1, ids=[job_id], epochs=[epoch], results=[b""], others=(), indexes=[0], refused=(), size=100
            )
            one.rules.report(session, outcomes)
            receipt = await session.next_part()
            assert isinstance(receipt, ControlFrame)
            assert (receipt.receipts_seq, receipt.receipt_exceptions) == (1, [])
            assert not writing.done()
        assert await writing == 1  # of a job that has ended meanwhile


def test_of_the_log_lines_of_a_heartbeat_no_more_are_taken_than_one_message_may_have() -> None:
    lines = [LogLineIn(seq=seq, text="", level="notice") for seq in range(250)]
    found = list(attempts_of((new_id(), 1, lines) for _ in range(60)))
    assert len(found) == 50
    assert sum(len(one.lines) for one in found) == limits.LOGS_MAX_LINES
    assert {one.lines[0].seq for one in found} == {50}  # the newest ones
    ((_, _, _, valid),) = attempts_of([(new_id(), 1, [LogLineIn(seq=0, text=""), LogLineIn(seq=1, text="")])])
    assert [(one.seq, one.level) for one in valid] == [(1, 2)]


class Rows:
    """A store that counts, and fails for one tenant."""

    def __init__(self, failing: int = 0, error: HeadgateError | None = None) -> None:
        self.calls: list[tuple[int, int]] = []
        self._failing, self._error = failing, error

    async def add_log_lines(self, tenant_no: int, attempts: Sequence[AttemptLines]) -> int:
        if self._error is not None and tenant_no == self._failing:
            raise self._error
        self.calls.append((tenant_no, sum(len(one.lines) for one in attempts)))
        return self.calls[-1][1]


async def test_many_jobs_share_a_statement_and_tenants_take_turns() -> None:
    rows = Rows()
    writer = LogWriter(rows)
    for tenant_no, jobs in ((1, 1_500), (2, 3)):
        for _ in range(jobs):
            writer.note(tenant_no, AttemptLines(new_id(), 1, 1, [line(1)]))
    assert await writer.run_once() == 1_503
    assert rows.calls == [(1, 1_000), (2, 3), (1, 500)]
    assert await writer.run_once() == 0  # nothing waits: no statement


async def test_what_does_not_fit_is_dropped_and_counted_and_others_are_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = Rows(failing=3, error=StoreBusy("in a deadlock"))
    writer = LogWriter(rows)
    for tenant_no, jobs in ((1, MOST_LINES + 7), (2, 1), (3, 2)):
        for _ in range(jobs):
            writer.note(tenant_no, AttemptLines(new_id(), 1, 1, [line(1)]))
    assert await writer.run_once() == MOST_LINES + 1
    dropped = [record.getMessage() for record in caplog.records if record.msg.startswith("job_logs_dropped")]
    assert dropped == ["job_logs_dropped tenant=1 lines=7", "job_logs_dropped tenant=3 lines=2"]


async def test_of_a_tenant_whose_lines_cannot_be_written_all_that_wait_are_dropped_and_counted_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer = LogWriter(Rows(failing=1, error=StoreBusy("in a deadlock")))
    for _ in range(1_500):
        writer.note(1, AttemptLines(new_id(), 1, 1, [line(1)]))
    assert await writer.run_once() == 0
    assert [record.getMessage() for record in caplog.records] == [
        "job_logs_failed tenant=1 error=in a deadlock",
        "job_logs_dropped tenant=1 lines=1500",
    ]


async def test_a_database_that_is_down_is_one_line_in_the_log_for_all_tenants(caplog: pytest.LogCaptureFixture) -> None:
    rows = Rows(failing=2, error=StoreUnavailable("gone"))
    writer = LogWriter(rows)
    for tenant_no in (1, 2, 3, 4):
        writer.note(tenant_no, AttemptLines(new_id(), 1, 1, [line(1), line(2)]))
    writer.note(4, AttemptLines(new_id(), 1, 1, [line(seq) for seq in range(1, MOST_LINES + 1)]))  # does not fit
    await writer.try_once()
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == f"job_logs_failed error={6 + MOST_LINES} lines were dropped: gone"
    assert rows.calls == [(1, 2)]  # and the others are not tried


async def test_one_attempt_cannot_fill_the_buffer() -> None:
    rows = Rows()
    writer = LogWriter(rows)
    job_id = new_id()
    for first in range(1, 100_001, 200):
        writer.note(1, AttemptLines(job_id, 1, 1, [line(seq) for seq in range(first, first + 200)]))
    assert await writer.run_once() == 200


async def test_of_large_lines_of_a_tenant_no_more_bytes_wait_than_the_bound() -> None:
    rows = Rows()
    writer = LogWriter(rows)
    fit = MOST_BYTES // 4_096
    for _ in range(fit + 9):
        writer.note(1, AttemptLines(new_id(), 1, 1, [line(1, "x" * 4_096)]))
    writer.note(2, AttemptLines(new_id(), 1, 1, [line(1)]))
    assert await writer.run_once() == fit + 1


async def test_lines_that_came_before_a_stop_are_written() -> None:
    rows = Rows()
    writer = LogWriter(rows)
    writer.note(1, AttemptLines(new_id(), 1, 1, [line(1)]))
    writer.stop()
    async with asyncio.timeout(SOON.total_seconds()):
        await writer.run()
    assert rows.calls == [(1, 1)]
