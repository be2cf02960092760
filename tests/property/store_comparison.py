"""A store under test beside its model: opened, and compared after every step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, time
from typing import Any, ClassVar, Final, TypeVar
from uuid import UUID

import asyncpg
from hypothesis.stateful import RuleBasedStateMachine

from headgate.dispatch.watermark import Watermark
from headgate.domain.backoff import RetryPolicy
from headgate.domain.ids import TenantNo
from headgate.domain.outcomes import Outcome
from headgate.domain.states import EventKind, OutcomeKind, State
from headgate.store import control, reads
from headgate.store.connect import Connection, connect
from headgate.store.names import Names, Topic
from tests.property.store_draws import AGED, AGEING_STEP_US, OWN, OWN_ATTEMPTS, OWN_POLICY, STRICT, TENANTS
from tests.property.store_model import Event, Job, Ref, StoreModel, Target
from tests.support.database import Server
from tests.support.queue import Clock

T = TypeVar("T")


# --- what is compared -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One job as its row, or the model, has it: every fact there is, and nothing that only one of them knows."""

    state: State
    topic_no: int
    attempt: int
    max_attempts: int
    epoch: int
    last_outcome: OutcomeKind | None
    cancel_requested: bool
    priority: int
    rank: tuple[int, int] | None  # of live jobs only: a finished one has left the order
    policy: RetryPolicy
    edited: bool
    owner: int | None
    worker: str | None
    created_at: datetime
    run_at: datetime
    claimed_at: datetime | None
    lease_until: datetime | None
    finished_at: datetime | None
    last_error: str | None
    headers: Mapping[str, str]
    tags: frozenset[str]
    payload: bytes
    result: bytes | None

    @classmethod
    def of(cls, job: Job) -> Stored:
        record = job.record
        return cls(
            state=record.state,
            topic_no=job.topic_no,
            attempt=record.attempt,
            max_attempts=record.max_attempts,
            epoch=record.epoch,
            last_outcome=record.last_outcome,
            cancel_requested=record.cancel_requested,
            priority=record.priority,
            rank=None if record.state.is_final else record.order_key,
            policy=record.policy,
            edited=job.edited,
            owner=job.owner,
            worker=job.worker,
            created_at=job.created_at,
            run_at=record.run_at,
            claimed_at=job.claimed_at,
            lease_until=record.lease_until,
            finished_at=job.finished_at,
            last_error=job.last_error,
            headers=dict(job.headers),
            tags=job.tags,
            payload=job.payload,
            result=job.result,
        )


ROWS: Final = """
WITH every AS (
    SELECT tenant_no, id, state, topic_no, attempt, max_attempts, epoch, last_outcome, flags, priority, rank_class,
           rank_at, policy_no, owner, worker, created_at, run_at, claimed_at, lease_until,
           NULL::timestamptz AS finished_at, last_error, headers, payload, NULL::bytea AS result
      FROM headgate.jobs
     UNION ALL
    SELECT tenant_no, id, state, topic_no, attempt, max_attempts, epoch, last_outcome, flags, priority, NULL, NULL,
           policy_no, owner, worker, created_at, run_at, claimed_at, NULL, finished_at, last_error, headers, payload,
           result
      FROM headgate.archive)
SELECT e.tenant_no, e.id, e.state, e.topic_no, e.attempt, e.max_attempts, e.epoch, e.last_outcome, e.flags, e.priority,
       e.rank_class, e.rank_at, e.policy_no, e.owner, e.worker, e.created_at, e.run_at, e.claimed_at, e.lease_until,
       e.finished_at, e.last_error, e.headers, e.payload, e.result, p.payload AS large,
       ARRAY(SELECT t.tag FROM headgate.job_tags t WHERE t.tenant_no = e.tenant_no AND t.job_id = e.id) AS tags
  FROM every e LEFT JOIN headgate.payloads p ON p.tenant_no = e.tenant_no AND p.id = e.id"""
EVENTS: Final = """
SELECT tenant_no, job_id, at, kind, state, epoch, attempt, run_at FROM headgate.job_events ORDER BY at, event_no"""
# Rows that hang on no job are a leak: nothing would ever delete them.
ORPHANS: Final = """
WITH known AS (SELECT tenant_no, id FROM headgate.jobs UNION ALL SELECT tenant_no, id FROM headgate.archive)
SELECT (SELECT count(*) FROM headgate.payloads WHERE (tenant_no, id) NOT IN (SELECT tenant_no, id FROM known))
     + (SELECT count(*) FROM headgate.job_tags WHERE (tenant_no, job_id) NOT IN (SELECT tenant_no, id FROM known))"""


class StoreUnderTest(RuleBasedStateMachine):
    """One database, one model, and one watermark per tenant, as one instance would keep it."""

    server: ClassVar[Server]
    template: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[Ref, None] = {}  # every id ever sent, in order, also of jobs that were refused or discarded
        self.said: list[tuple[Ref, int, Outcome]] = []  # every outcome ever reported
        self.left_out: frozenset[str] = frozenset()
        self.loop = asyncio.new_event_loop()
        self.database = self.server.create(template=self.template)
        try:
            self.run(self._open())
        except BaseException:
            self.teardown()
            raise

    async def _open(self) -> None:
        self.db: Connection = await connect(self.server.dsn_of(self.database), application_name="headgate model test")
        # Noon, so that small steps stay within the day's partition; the large ones need others.
        # The model counts claims. That ranges of epochs are never shared is shown by test_epochs.py: here all are 0.
        await self.db.execute("ALTER SEQUENCE headgate.epoch_ranges INCREMENT 2 MINVALUE 0 MAXVALUE 1 RESTART 0 CYCLE")
        self.clock = await Clock.install(self.db, datetime.combine(datetime.now(UTC), time(12), UTC))
        self.names = Names()
        self.tenant_nos: dict[str, TenantNo] = {}
        self.topics_by_no: dict[int, Topic] = {}
        for tenant in TENANTS:
            tenant_no = self.tenant_nos[tenant] = await self.names.tenant(self.db, tenant)
            policy_no = await self.names.policy_no(self.db, tenant_no, OWN_POLICY)
            _, own, aged = await self.names.topics(self.db, tenant_no, [STRICT, OWN, AGED])
            await self.db.execute(
                "UPDATE headgate.topics SET ageing_step_us = $2 WHERE topic_no = $1", aged.no, AGEING_STEP_US[tenant]
            )
            await self.db.execute(
                "UPDATE headgate.topics SET max_attempts = $2, policy_no = $3 WHERE topic_no = $1",
                own.no,
                OWN_ATTEMPTS,
                policy_no,
            )
        await self.names.refresh(self.db)
        for tenant_no in self.tenant_nos.values():
            for topic in await self.names.topics(self.db, tenant_no, [STRICT, OWN, AGED]):
                self.topics_by_no[topic.no] = topic
        self.model = StoreModel(self.clock.now, {no: topic.rules for no, topic in self.topics_by_no.items()})
        # Room for two classes only, so that marks are also dropped.
        self.marks: dict[tuple[int, tuple[int, ...]], Watermark] = {}  # by demand
        self.hints: dict[int, dict[UUID, None]] = {no: {} for no in self.tenant_nos.values()}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        try:
            if hasattr(self, "db"):
                self.run(self.db.close())
        finally:
            self.loop.close()
            self.server.drop(self.database)

    async def _compare(self) -> None:
        stored: dict[Ref, Stored] = {}
        for row in await self.db.fetch(ROWS):
            ref = Ref(row["tenant_no"], row["id"])
            assert ref not in stored, f"{ref} is live and finished at once"
            stored[ref] = await self._stored(row)
        assert stored.keys() == self.model.jobs.keys()
        for ref, job in self.model.jobs.items():
            differing = _difference(stored[ref], Stored.of(job))
            assert not differing, f"{ref}: (store, model) differ in {differing}"

        events: dict[Ref, list[Event]] = {}
        for tenant_no, job_id, at, kind, state, epoch, attempt, run_at in await self.db.fetch(EVENTS):
            event = Event(at=at, kind=EventKind(kind), state=State(state), epoch=epoch, attempt=attempt, run_at=run_at)
            events.setdefault(Ref(tenant_no, job_id), []).append(event)
        assert events == {ref: self.model.history(ref) for ref in self.model.events}

        assert await self.db.fetch("SELECT topic_no FROM headgate.limit_drift_v1()") == []

        counted = {
            (tenant_no, topic_no, state): n
            for tenant_no in self.tenant_nos.values()
            for topic_no, states in (await reads.counts(self.db, tenant_no)).items()
            for state, n in states.items()
        }
        assert counted == self.model.counts()

        keys = await self.db.fetch("SELECT topic_no, key, job_id, body_hash, expires_at FROM headgate.idempotency_keys")
        assert {(row[0], row[1]): (row[2], row[3], row[4]) for row in keys} == {
            name: (key.job_id, key.digest, key.expires_at) for name, key in self.model.keys.items()
        }
        resent = await self.db.fetch("SELECT tenant_no, id, expires_at FROM headgate.resent_ids")
        assert {Ref(row[0], row[1]): row[2] for row in resent} == self.model.remembered
        assert await self.db.fetchval(ORPHANS) == 0

        controls = {
            Target(row.tenant_no, row.topic_no): (row.paused, row.reason, row.paused_at, row.paused_until)
            for row in await control.controls(self.db)
        }
        now = self.model.now
        assert controls == {
            target: (pause.holds(now), pause.reason if pause.holds(now) else "", pause.paused_at, pause.until)
            for target, pause in self.model.pauses.items()
        }

    async def _stored(self, row: asyncpg.Record) -> Stored:
        state, flags = State(row["state"]), row["flags"]
        # A body lies in exactly one of two places, and the flag says in which.
        assert (row["payload"] is None, row["large"] is not None) == (flags & 1 != 0, flags & 1 != 0)
        assert (flags & 2 != 0) == bool(row["tags"])
        return Stored(
            state=state,
            topic_no=row["topic_no"],
            attempt=row["attempt"],
            max_attempts=row["max_attempts"],
            epoch=row["epoch"],
            last_outcome=None if row["last_outcome"] is None else OutcomeKind(row["last_outcome"]),
            cancel_requested=flags & 16 != 0,
            priority=row["priority"],
            rank=None if state.is_final else (row["rank_class"], row["rank_at"]),
            policy=await self.names.policy_by_no(self.db, row["policy_no"]),
            edited=flags & 8 != 0,
            owner=row["owner"],
            worker=row["worker"],
            created_at=row["created_at"],
            run_at=row["run_at"],
            claimed_at=row["claimed_at"],
            lease_until=row["lease_until"],
            finished_at=row["finished_at"],
            last_error=row["last_error"],
            headers=json.loads(row["headers"] or "{}"),
            tags=frozenset(row["tags"]),
            payload=row["large"] if row["payload"] is None else row["payload"],
            result=(row["result"] or b"") if state is State.COMPLETED else row["result"],
        )


def _difference(store: Stored, model: Stored) -> dict[str, tuple[Any, Any]]:
    pairs = {field.name: (getattr(store, field.name), getattr(model, field.name)) for field in fields(Stored)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
