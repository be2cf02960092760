"""Two tenants whose jobs, batches and keys have the same ids: what is done to one tenant changes no row of the other.

Ids are unique within a tenant only. A statement without its tenant condition passes every test with one tenant, and
every test with different ids.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from headgate.domain.dependencies import NewBatch, Unique
from headgate.domain.errors import NotFound
from headgate.domain.ids import JobId
from headgate.domain.job_logs import AttemptLines, LogLine
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Outcome, Snooze
from headgate.domain.schedules import Every, ScheduleSpec
from headgate.domain.states import State
from headgate.store import (
    batches,
    control,
    dependencies,
    job_logs,
    leases,
    reads,
    retention,
    schedules,
    topics,
    upkeep,
    verbs,
)
from headgate.store.batch_graphs import batch_graph
from headgate.store.connect import Connection
from headgate.store.listing import Filter
from headgate.store.partitions import ensure_partitions
from tests.support.queue import Clock, Queue, new_id
from tests.support.store_calls import list_jobs, promote

RETRIES = Failed(error=ErrorInfo(type="Oops"))
DIES = Failed(error=ErrorInfo(type="Fatal"), permanent=True)
# Each ends in its own way, and has all that a job can have.
ENDS: dict[str, Outcome] = {
    "completed": Completed(result=b"1"),
    "retrying": RETRIES,
    "dead": DIES,
    "snoozed": Snooze(delay=timedelta(minutes=5)),
    "nacked": Nack(delay=timedelta(minutes=5), reason="busy"),
    "abandoned": Abandon(),
}
TABLES = """
SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
 WHERE c.relnamespace = 'headgate'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
   AND a.attname = 'tenant_no' AND NOT a.attisdropped ORDER BY 1"""


class Twin:
    """One of the two tenants: the same names and ids in both."""

    def __init__(self, queue: Queue, ids: dict[str, JobId]) -> None:
        self.queue, self.db, self.ids = queue, queue.db, ids
        self.no = 0
        self.triggered = JobId(UUID(int=0))
        self.epochs: dict[UUID, int] = {}

    @property
    def body(self) -> bytes:
        """Large enough for a row of its own."""
        return self.queue.tenant.encode().ljust(1_100, b"l")

    @property
    def common(self) -> list[JobId]:
        """The jobs that both tenants have, or may have."""
        return [job_id for name, job_id in self.ids.items() if "only" not in name]

    def id(self, name: str) -> JobId:
        return self.ids.setdefault(name, new_id())

    async def build(self, *, lease: timedelta, due: timedelta) -> None:
        """Jobs in every state, related to each other in every way."""
        queue, self.no = self.queue, await self.queue.tenant_no()
        await topics.set_topic(
            self.db, queue.names, self.no, (await queue.topic("work")).name, changes={"max_running_per_key": 1}
        )
        batch = NewBatch(id=self.id("batch"))
        await batches.open_batch(self.db, queue.names, self.no, batch, callback=queue.job("done", id=self.id("done")))
        for name in (*ENDS, "running", "lost", "waiting", "cancelled", "discarded"):
            await self.submit(name)
        await self.submit("scheduled", delay=due)
        await self.submit("due", delay=due)
        await self.submit("keyed", limit_key="one", topic="work")
        await self.submit("queued", limit_key="one", topic="work")
        for name in ENDS:
            await self.submit(f"child of {name}", topic="children", depends_on=[self.id(name)])
        spec = ScheduleSpec(topic="nightly", timing=Every(interval=timedelta(days=300)))
        await schedules.put(self.db, queue.names, self.no, "nightly", spec, expected=None, who="ana")
        made, _, _ = await schedules.trigger(
            self.db, queue.names, self.no, "nightly", request=self.id("trigger"), who="ana", reason=""
        )
        self.triggered = made  # its id is made from the number of the schedule
        claimed = await queue.claim(50, "mail", "work", lease=lease)
        self.epochs = dict(zip(claimed.ids, claimed.epochs, strict=True))
        await job_logs.add_log_lines(
            self.db, self.no, [AttemptLines(i, e, 1, [LogLine(1, 1, 2, "app", "said")]) for i, e in self.epochs.items()]
        )
        kept = [self.id(name) for name in ("waiting", "cancelled", "discarded")]
        await queue.settle(*((i, self.epochs[i], Abandon()) for i in kept))
        await verbs.cancel(self.db, self.no, [self.id("cancelled"), self.id("discarded")], who="ana")

    async def submit(self, name: str, topic: str = "mail", **options: object) -> None:
        mail = {
            "payload": self.body,
            "tags": [self.queue.tenant],
            "unique": Unique(key=name),
            "key": name,
            "key_window": timedelta(days=30),
            "batch": self.id("batch"),
        }
        given = (mail if topic == "mail" else {}) | options
        await self.queue.submit(self.queue.job(topic, id=self.id(name), **given))

    async def settle(self, *names: str) -> None:
        ended = [(self.id(name), self.epochs[self.id(name)], ENDS[name]) for name in names]
        await self.queue.settle(*ended)

    async def rows(self) -> dict[str, list[str]]:
        """All rows of the tenant, by table."""
        return {
            table: sorted(
                row[0]
                for row in await self.db.fetch(
                    f"SELECT to_jsonb(t)::text FROM headgate.{table} t WHERE t.tenant_no = $1", self.no
                )
            )
            for (table,) in await self.db.fetch(TABLES)
        }


@asynccontextmanager
async def unchanged(twin: Twin) -> AsyncIterator[Callable[[str, Awaitable[object]], Awaitable[None]]]:
    """A call after which the rows of the tenant are compared with those of before."""
    before = await twin.rows()
    for table in ("jobs", "archive", "job_tags", "payloads", "job_logs", "unique_jobs", "batch_jobs", "limit_line"):
        assert before[table], f"{table} is empty: nothing would be noticed"

    async def check(what: str, doing: Awaitable[object]) -> None:
        await doing
        after = await twin.rows()
        changed = {table: (before[table], rows) for table, rows in after.items() if rows != before[table]}
        assert not changed, f"{what} of one tenant changed rows of another: {changed}"

    yield check


@pytest.fixture
async def twins(db: Connection, clock: Clock) -> tuple[Twin, Twin]:
    """The one that acts, and the one whose rows must stay; its leases and delays are longer, as is what it keeps."""
    ids: dict[str, JobId] = {}
    acting, other = Twin(Queue(db, tenant="acme"), ids), Twin(Queue(db, tenant="globex"), ids)
    await acting.build(lease=timedelta(minutes=1), due=timedelta(minutes=5))
    await other.build(lease=timedelta(hours=20), due=timedelta(days=90))
    assert (acting.no, other.no) != (0, 0)
    assert acting.epochs.keys() == other.epochs.keys()
    while (await dependencies.unblock_ready(db))[1]:
        pass
    return acting, other


async def test_what_workers_and_operators_do_for_one_tenant_changes_no_row_of_another(
    twins: tuple[Twin, Twin], clock: Clock
) -> None:
    acting, other = twins
    db, queue, no = acting.db, acting.queue, acting.no
    held = [acting.id(name) for name in ("running", "lost")]
    epochs = [acting.epochs[one] for one in held]

    async def all_unblocked() -> None:
        while (await dependencies.unblock_ready(db))[1]:
            pass

    async with unchanged(other) as check:
        for name in ("completed", "running", "scheduled"):
            await check(f"a repeated submit, {name}", acting.submit(name))
        replaced = queue.job(id=new_id(), unique=Unique(key="waiting", on_conflict="replace"), payload=b"n" * 3_000)
        await check("a submit that replaces", queue.submit(replaced))
        children = [
            queue.job(
                "children", id=new_id(), depends_on=[acting.id(name), acting.id("running")], on_parent_failure=then
            )
            for name in ("cancelled", "running", "waiting")
            for then in ("block", "ignore")
        ]
        await check("a submit with parents", queue.submit(*children))
        joined = queue.job("children", id=new_id(), batch=acting.id("batch"), depends_on=[acting.id("queued")])
        await check("a submit to a batch", queue.submit(joined))
        await check("a claim", queue.claim(50, "mail", "work", "nightly"))
        again = leases.Held(tenant_no=no, ids=held, epochs=epochs, lease_ms=120_000)
        await check("a renewal", leases.renew(db, [again]))
        await check("a declared renewal", leases.renew(db, [again], owner=7))
        report = ["{}"] * len(held)
        await check("progress", db.fetch("SELECT headgate.progress_v1($1, $2, $3, $4)", no, held, epochs, report))
        lines = [AttemptLines(i, e, 1, [LogLine(2, 1, 2, "app", "more")]) for i, e in zip(held, epochs, strict=True)]
        await check("log lines", job_logs.add_log_lines(db, no, lines))
        for name in ENDS:
            await check(f"the outcome of {name}", acting.settle(name))
        await check("unblocked children", all_unblocked())
        await check(
            "a cancel", verbs.cancel(db, no, [acting.id(n) for n in ("waiting", "queued", "running")], who="ana")
        )
        await check("a new priority", verbs.reprioritise(db, no, [acting.id("scheduled")], priority=9, who="ana"))
        elsewhere = (await queue.topic("elsewhere")).no
        await check("a move", verbs.move(db, no, [acting.id("scheduled")], topic_no=elsewhere, who="ana"))
        await check("a redrive", verbs.redrive(db, no, [acting.id("dead")], payloads=[b"e" * 3_000], who="ana"))
        await check("a discard", verbs.discard(db, no, [acting.id("discarded"), acting.id("queued")], who="ana"))
        await check("a seal", batches.seal_batch(db, no, acting.id("batch")))
        await check("a pause", control.pause(db, (no, (await queue.topic("mail")).no)))
        await check("a resume", control.resume(db, (no, (await queue.topic("mail")).no)))
        lost = ("SELECT headgate.expire_lost_v1($1, 7, $2, $3, 0, true)", no, held, epochs)
        await check("a lost worker", db.fetch(*lost))
        await check(
            "what a worker does not declare", db.fetch("SELECT headgate.abandon_undeclared_v1($1, 'worker', '{}')", no)
        )
        await clock.advance(hours=1)
        await check("an expired lease", leases.reap(db))
        await check("a promotion", promote(db))
        await check("unblocked children", all_unblocked())
        who = {"who": "ana", "reason": ""}
        await check("a paused schedule", schedules.pause(db, queue.names, no, "nightly", **who))
        await check("a resumed schedule", schedules.resume(db, queue.names, no, "nightly", **who))
        await check("a deleted schedule", schedules.delete(db, queue.names, no, "nightly", expected=None, **who))


async def test_what_retention_removes_of_one_tenant_leaves_the_rows_of_another(
    twins: tuple[Twin, Twin], clock: Clock
) -> None:
    acting, other = twins
    db, queue = acting.db, acting.queue
    for twin in twins:
        replaced = Unique(key="waiting", on_conflict="replace")
        await twin.queue.submit(twin.queue.job(id=twin.id("replaces"), unique=replaced, payload=b"n" * 3_000))
        await twin.settle(*ENDS)
        await verbs.cancel(db, twin.no, [twin.triggered], who="ana")
    while (await dependencies.unblock_ready(db))[1]:
        pass
    keep = {f"keep_{state}": timedelta(days=1) for state in ("completed", "dead", "cancelled")}
    for topic in ("mail", "work", "nightly", "children", "done"):
        await topics.set_topic(db, queue.names, acting.no, (await queue.topic(topic)).name, changes=keep)
    await clock.advance(days=3)
    await ensure_partitions(db)
    # Left over: their jobs were discarded while they were stored.
    orphans = "UPDATE headgate.job_logs SET job_id = $3 WHERE tenant_no = $1 AND job_id = $2"
    await db.execute(orphans, acting.no, acting.id("running"), new_id())
    for table in ("idempotency_keys", "resent_ids", "unique_calls"):
        expiry = "CASE tenant_no WHEN $1 THEN headgate.clock_v1() ELSE headgate.clock_v1() + interval '1 s' END"
        await db.execute(f"UPDATE headgate.{table} SET expires_at = {expiry}", acting.no)

    async def passes() -> None:
        while (done := await retention.run_pass(db)).jobs or done.more:
            pass

    async with unchanged(other) as check:
        await check("a pass", passes())
        await check("log lines of nothing", job_logs.forget_log_lines(db))
        await check("expired keys", upkeep.forget_expired(db))
    assert not (await acting.rows())["archive"]
    assert not (await acting.rows())["idempotency_keys"]


Step = Callable[[Twin], Awaitable[object]]


async def claimed(twin: Twin) -> object:
    found = await twin.queue.claim(50, "mail", "work", hints=[twin.id("waiting"), twin.id("abandoned")])
    twin.epochs |= dict(zip(found.ids, found.epochs, strict=True))
    return sorted(zip(found.ids, found.attempts, found.payloads, strict=True))


async def settled(twin: Twin) -> object:
    twice = [(twin.id(name), twin.epochs[twin.id(name)], outcome) for name, outcome in ENDS.items()]
    return [(one.receipt, one.state) for _ in range(2) for one in await twin.queue.settle(*twice)]


async def renewed(twin: Twin) -> object:
    ids = sorted(twin.epochs)
    held = leases.Held(tenant_no=twin.no, ids=ids, epochs=[twin.epochs[one] for one in ids], lease_ms=90_000)
    return sorted((key[1], what) for key, what in (await leases.renew(twin.db, [held])).items())


async def ended(twin: Twin) -> object:
    names = ("waiting", "queued", "running", "completed", "dead", "scheduled")
    changes = await verbs.cancel(twin.db, twin.no, [twin.id(name) for name in names], who="ana")
    return [(job_id, one.changed, one.state) for job_id, one in changes.items()]


async def submitted_again(twin: Twin) -> object:
    again = [
        twin.queue.job(id=twin.id(name), payload=twin.body) for name in ("completed", "dead", "cancelled", "running")
    ]
    keyed = [twin.queue.job(id=new_id(), payload=twin.body, key=name, key_window=timedelta(days=1)) for name in ENDS]
    return [(one.id, one.receipt) for one in await twin.queue.submit(*again, *keyed)]


async def changed(twin: Twin) -> object:
    db, no, who = twin.db, twin.no, "ana"
    raised = await verbs.reprioritise(db, no, [twin.id("scheduled"), twin.id("dead")], priority=9, who=who)
    redriven = await verbs.redrive(db, no, [twin.id("dead"), twin.id("cancelled")], who=who)
    gone = await verbs.discard(db, no, [twin.id("discarded"), twin.id("waiting"), twin.id("completed")], who=who)
    return [{key: one.state for key, (one, _) in raised.items()}, set(redriven), gone]


async def unblocked(twin: Twin) -> object:
    while (await dependencies.unblock_ready(twin.db))[1]:
        pass
    states = await verbs.states(twin.db, twin.no, twin.common)
    return {job_id: state for job_id, (state, _, _) in states.items()}


async def bodies(twin: Twin) -> object:
    return {job_id: await reads.payload(twin.db, twin.no, job_id) for job_id in await known(twin)}


async def results(twin: Twin) -> object:
    return {job_id: await reads.result(twin.db, twin.no, job_id) for job_id in await known(twin)}


async def views(twin: Twin) -> object:
    found = [await reads.get(twin.db, twin.no, job_id) for job_id in await known(twin)]
    return [(one.id, one.state, one.attempt, one.last_error, one.worker, one.key, one.finished_at) for one in found]


async def tags(twin: Twin) -> object:
    return await reads.tags(twin.db, twin.no, await known(twin))


async def histories(twin: Twin) -> object:
    ids = sorted(twin.common)
    return {one: [(e.kind, e.state, e.attempt, e.at) for e in await reads.events(twin.db, twin.no, one)] for one in ids}


async def logs(twin: Twin) -> object:
    since = datetime(2020, 1, 1, tzinfo=UTC)
    found = {}
    for one in sorted(twin.common):
        page = await job_logs.read_newest_lines(twin.db, twin.no, one, since=since, limit=9)
        found[one] = [(line.seq, line.text) for line in page.lines]
    return found


async def batch(twin: Twin) -> object:
    status = await batches.batch_status(twin.db, twin.no, twin.id("batch"))
    graph = await batch_graph(twin.db, twin.queue.names, twin.no, status)
    shown = sorted((one.id, one.state) for one in graph.members)
    return status.counts, status.callback_state, shown, sorted(graph.edges, key=str)


async def listed(twin: Twin) -> object:
    """By each of the orders in which jobs are read."""
    filters = [
        Filter(),
        Filter(states=frozenset({State.DEAD, State.CANCELLED})),
        Filter(states=frozenset({State.RUNNING})),
        Filter(tags=[twin.queue.tenant]),
        Filter(unique_keys=frozenset({"running"})),
        Filter(topic_nos=frozenset({(await twin.queue.topic("mail")).no})),
    ]
    common = set(twin.common)
    pages = [await list_jobs(twin.db, twin.no, matching=one, limit=100) for one in filters]
    rows = [[row for row in page.rows if row.id in common] for page in pages]
    return [[(row.id, row.state, row.attempt) for row in some] for some in rows]


async def known(twin: Twin) -> list[UUID]:
    return sorted(await verbs.states(twin.db, twin.no, twin.common))


async def related(twin: Twin) -> object:
    """Children of parents in every state, and of one that only the other tenant has."""
    found = []
    for name in (*ENDS, "running", "waiting", "cancelled", "only acme", "only ajax"):
        children = [
            twin.queue.job("more", id=twin.id(f"{then} {name}"), depends_on=[twin.id(name)], on_parent_failure=then)
            for then in ("block", "ignore", "cancel")
        ]
        try:
            found.append([(one.id, one.receipt) for one in await twin.queue.submit(*children)])
        except NotFound:
            found.append([])
    found[-2 if twin.queue.tenant == "acme" else -1].clear()
    return found


LOOKS: tuple[Step, ...] = (bodies, results, views, tags, histories, logs, batch, listed)
STEPS: tuple[Step, ...] = (
    claimed,
    renewed,
    settled,
    related,
    unblocked,
    submitted_again,
    ended,
    changed,
    unblocked,
    claimed,
)


async def test_a_tenant_gets_the_same_answers_before_and_after_its_twin(db: Connection, clock: Clock) -> None:
    """The first acts while the other is at the beginning, the second while the first is at the end."""
    ids: dict[str, JobId] = {}
    twins = [Twin(Queue(db, tenant=name), ids) for name in ("acme", "ajax")]
    for twin in twins:
        await twin.build(lease=timedelta(minutes=1), due=timedelta(minutes=5))
        await twin.submit(f"only {twin.queue.tenant}", topic="elsewhere")
    answers = [
        [(step.__name__, repr(await step(twin)).replace(twin.queue.tenant, "tenant")) for step in (*STEPS, *LOOKS)]
        for twin in twins
    ]
    for first, second in zip(*answers, strict=True):
        assert first == second
