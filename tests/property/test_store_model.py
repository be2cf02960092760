"""The store and its model agree, whatever is done in whatever order.

Random sequences of every verb run against a real PostgreSQL and against `StoreModel`; after each step the answers, all
jobs, histories, keys, pause rows and counts are compared. The store's clock is in the test's hands and stands still
during a step, so nothing is "about": due times, leases and ranks are equal to the microsecond.

`make model` makes a long search of it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, time, timedelta
from hashlib import sha256
from typing import Any, ClassVar, Final, TypeVar
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from headgate.dispatch.watermark import Watermark
from headgate.domain import limits
from headgate.domain.arrivals import Seen
from headgate.domain.backoff import BackoffKind, RetryPolicy, jitter_of
from headgate.domain.bulk import JobLine
from headgate.domain.dispatching import Claimed, Renewal
from headgate.domain.errors import NotFound
from headgate.domain.ids import JobId, TenantName, TenantNo, TopicName, new_job_id
from headgate.domain.jobs import Submission
from headgate.domain.keyrange import KeyRanges
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Outcome, Snooze
from headgate.domain.states import EventKind, OutcomeKind, State
from headgate.store import control, leases, listing, reads, topics, upkeep, verbs
from headgate.store import settle as settling
from headgate.store.connect import Connection, connect
from headgate.store.names import Names, Topic
from headgate.store.new_ids import BEGINNING
from tests.property.store_model import WAITING, Answer, Asked, Event, Job, Ref, StoreModel, Target
from tests.property.strategies import job_ids, policies
from tests.support import store_calls
from tests.support.database import Server
from tests.support.queue import Clock

EXAMPLES: Final = int(os.environ.get("HEADGATE_MODEL_EXAMPLES", "40"))
STEPS: Final = 60
SHRINKING: Final = 300  # seconds for which Hypothesis may look for a smaller example before it reports one

T = TypeVar("T")
SECOND, MICRO = timedelta(seconds=1), timedelta(microseconds=1)
AT_ONCE: Final = timedelta(0)
TENANTS: Final = ("acme", "umbrella")
# Two strict topics, the second with rules of its own; and one that ages, slowly in one tenant and fast in the other.
STRICT, OWN, AGED = "strict", "strict/own-rules", "aged"
OWN_ATTEMPTS: Final = 2
OWN_POLICY: Final = RetryPolicy.fixed(7 * SECOND)
AGEING_STEP_US: Final = {"acme": 1_000_000, "umbrella": 3_600_000_000}
MANY: Final = 1_000
LIVE: Final = tuple(state for state in State if not state.is_final)
QUEUED: Final = tuple(state for state in State if state.is_queued)
FINAL: Final = tuple(state for state in State if state.is_final)


def _id(number: int) -> JobId:
    # Ids neither in the order of submission nor drawn: a jitter depends on them, and an example must be repeatable.
    digest = sha256(b"%d" % number).digest()
    return new_job_id(now_ms=1_763_000_000_000 + digest[10], random_bits=digest[:10])


IDS: Final = [_id(number) for number in range(1_000)]
UNKNOWN_ID: Final = _id(-1)


# --- what is drawn ----------------------------------------------------------------------------------------------------

POLICIES: Final = (
    RetryPolicy.quadratic(),
    RetryPolicy.quadratic(2 * SECOND, cap=5 * SECOND),
    RetryPolicy.fixed(SECOND / 2),
    RetryPolicy.linear(3 * SECOND, cap=4 * SECOND),
    RetryPolicy.exponential(SECOND, cap=3 * SECOND),
    RetryPolicy.exponential_equal_jitter(timedelta(days=10), cap=timedelta(days=30)),
    RetryPolicy.exponential_full_jitter(timedelta(milliseconds=1)),  # often 0: straight back to pending
    RetryPolicy.exponential_full_jitter(timedelta(hours=1)),
    RetryPolicy.explicit(AT_ONCE, 5 * SECOND),
    RetryPolicy.explicit(2 * SECOND),
)
assert {policy.kind for policy in POLICIES} == set(BackoffKind)

inline = limits.PAYLOAD_INLINE_MAX_BYTES
payloads = st.sampled_from([b"", b"a", b"b", b"c" * inline, b"d" * (inline + 1), b"e" * 3_000])
priorities = st.sampled_from([0, 0, 1, -1, 5, 10, limits.PRIORITY_MAX, limits.PRIORITY_MIN])
delays = st.sampled_from([AT_ONCE, AT_ONCE, SECOND, timedelta(microseconds=1_500), timedelta(minutes=2)]) | st.just(
    timedelta(milliseconds=limits.DELAY_MAX_MS)
)
lease_times = st.sampled_from([SECOND, 10 * SECOND, timedelta(hours=24)])
errors = st.builds(ErrorInfo, type=st.sampled_from(["", "ValueError"]), message=st.sampled_from(["", "boom"]))
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Completed, result=st.sampled_from([b"", b"done", b"r" * 2_000])),
    st.builds(Failed, error=errors),
    st.builds(Failed, error=errors, permanent=st.booleans()),
    st.builds(Nack, delay=delays, reason=st.sampled_from(["", "limited"])),
    st.builds(Abandon),
    st.builds(Snooze, delay=delays),
)
bounds = st.integers(1, 4) | st.just(MANY)  # how many jobs a verb may take
tenant_indexes = st.sampled_from([0, 0, 1])
machine: st.SearchStrategy[StoreMachine] = st.runner()


@st.composite
def batches(draw: st.DrawFn) -> list[Submission]:
    """Jobs for one flush: new ones, and copies of what was sent before (in this flush, too) with the same or another
    body. Whether a job of that id lives, has finished, was discarded, or is another tenant's, is left to chance."""
    at = draw(machine)
    sent = list(at.sent)
    batch: list[Submission] = []
    for _ in range(draw(st.integers(1, 5))):
        tenant = TENANTS[draw(tenant_indexes)]
        tenant_no: int = at.tenant_nos[tenant]
        topic, payload = draw(st.sampled_from([STRICT, OWN, AGED])), draw(payloads)
        kind = draw(st.sampled_from(["new", "new", "new", "same", "other"] if sent else ["new"]))
        if kind == "new":
            number = len({ref.id for ref in sent})
            # Its body may be anything, its id another tenant's.
            twins = [ref.id for ref in sent if ref.tenant_no != tenant_no and Ref(tenant_no, ref.id) not in sent]
            job_id = draw(st.sampled_from([IDS[number], IDS[number], *twins[-1:]]))
        else:
            tenant_no, job_id = draw(st.sampled_from(sent))
            tenant = TENANTS[0] if tenant_no == at.tenant_nos[TENANTS[0]] else TENANTS[1]
            there = at.model.jobs.get(Ref(tenant_no, job_id))
            if kind == "same" and there is not None:
                topic, payload = at.topics_by_no[there.topic_no].name, there.payload
        ref = Ref(tenant_no, job_id)
        options: dict[str, Any] = {}
        if draw(st.integers(0, 3)) == 3:
            options["delay"] = draw(delays)
        elif draw(st.integers(0, 3)) == 3:
            options["run_at"] = at.model.now + draw(st.sampled_from([-1, 0, 1])) * draw(
                st.sampled_from([MICRO, SECOND])
            )
        if draw(st.integers(0, 3)) == 3:
            options["key"] = draw(st.sampled_from(["k", "l"]))
            options["key_window"] = draw(st.sampled_from([None, SECOND, 60 * SECOND]))
        batch.append(
            Submission(
                tenant=TenantName(tenant),
                topic=TopicName(topic),
                id=JobId(job_id),
                payload=payload,
                priority=draw(priorities),
                max_attempts=draw(st.sampled_from([None, 1, 2, 3])),
                policy=draw(st.none() | st.sampled_from(POLICIES)),
                tags=draw(st.sampled_from([(), (), ("red",), ("red", "big")])),
                headers=draw(st.sampled_from([{}, {}, {"trace": "1"}])),
                new_id=at.model.may_be_new(ref) and draw(st.booleans()),
                **options,
            )
        )
        sent.append(ref)
    return batch


@st.composite
def some_refs(draw: st.DrawFn, *states: State) -> list[Ref]:
    """Different jobs of one tenant, mostly such as the verb is made for; some exist no more, or never did."""
    at = draw(machine)
    fit = [ref for ref, job in at.model.jobs.items() if job.state in states]
    any_tenant = [Ref(tenant_no, UNKNOWN_ID) for tenant_no in at.tenant_nos.values()]
    first = draw(st.sampled_from(fit or any_tenant) | st.sampled_from([*at.sent, *any_tenant]))
    mine = [ref for ref in fit if ref.tenant_no == first.tenant_no]
    others = [ref for ref in at.sent if ref.tenant_no == first.tenant_no]
    more = draw(st.lists(st.sampled_from(mine or [first]) | st.sampled_from([first, *others]), max_size=3))
    return list(dict.fromkeys([first, *more]))


@st.composite
def reports(draw: st.DrawFn) -> list[tuple[Ref, int, Outcome]]:
    """Outcomes for one flush: mostly of leases that hold, else of old and future epochs, of jobs nobody knows, said
    twice in this flush, or word for word what was said before."""
    at = draw(machine)
    known = [ref for ref in at.sent if ref in at.model.jobs]
    running = [ref for ref in known if at.model.jobs[ref].state is State.RUNNING]
    said: list[tuple[Ref, int, Outcome]] = []
    for _ in range(draw(st.integers(1, 6))):
        kinds = (
            ["held"] * 6 * bool(running) + ["known"] * 2 * bool(known) + ["again"] * bool(at.said or said) + ["unknown"]
        )
        match draw(st.sampled_from(kinds)):
            case "held":
                ref = draw(st.sampled_from(running))
                off = draw(st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1]))
                said.append((ref, at.model.jobs[ref].record.epoch + off, draw(outcomes)))
            case "known":
                ref = draw(st.sampled_from(known))
                epoch = max(0, at.model.jobs[ref].record.epoch + draw(st.sampled_from([0, 0, -1, 1])))
                said.append((ref, epoch, draw(outcomes)))
            case "again":
                said.append(draw(st.sampled_from([*at.said[-20:], *said])))
            case _:
                said.append((Ref(at.tenant_nos[TENANTS[0]], UNKNOWN_ID), draw(st.integers(0, 2)), draw(outcomes)))
    return said


@st.composite
def targets(draw: st.DrawFn) -> Target:
    at = draw(machine)
    topic = draw(st.sampled_from([*at.topics_by_no.values()]))
    whole = st.sampled_from([Target(), Target(topic.tenant_no)])
    return draw(st.just(Target(topic.tenant_no, topic.no)) | whole)


@st.composite
def topic_choices(draw: st.DrawFn) -> tuple[int, list[int]]:
    """A tenant, mostly one with work to do, and mostly all of its topics."""
    at = draw(machine)
    busy = [ref.tenant_no for ref, job in at.model.jobs.items() if job.state is State.PENDING]
    tenant_no = draw(st.sampled_from(busy or [*at.tenant_nos.values()]) | st.sampled_from([*at.tenant_nos.values()]))
    topic_nos = [no for no, topic in at.topics_by_no.items() if topic.tenant_no == tenant_no]
    return tenant_no, draw(st.just(topic_nos) | st.lists(st.sampled_from(topic_nos), min_size=1, unique=True))


@st.composite
def filters(draw: st.DrawFn) -> listing.Filter:
    at = draw(machine)
    states = st.none() | st.frozensets(st.sampled_from(State), min_size=1, max_size=3)
    topic_nos = st.none() | st.frozensets(st.sampled_from([*at.topics_by_no]), min_size=1)
    moments = st.none() | st.sampled_from([job.created_at for job in at.model.jobs.values()] or [at.model.now])
    return listing.Filter(
        states=draw(states),
        topic_nos=draw(topic_nos),
        created_from=draw(moments),
        created_before=draw(moments),
        priority_from=draw(st.sampled_from([None, None, 0, 5])),
        priority_to=draw(st.sampled_from([None, None, 0, 5])),
        tags=draw(st.sampled_from([None, None, ("red",), ("big", "red")])),
    )


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


# --- steps ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verb:
    """One thing that can be done: how often, when it makes sense, and with what."""

    name: str
    weight: int
    when: Callable[[StoreMachine], object]
    arguments: dict[str, st.SearchStrategy[Any]]


VERBS: Final[dict[str, Verb]] = {}
# Left out of some runs, so that others see, say, a long life without a pause. The life cycle itself is never left out:
# that is why these are not Hypothesis rules, of which it disables more than half in every second run.
OPTIONAL: Final = (
    *("cancel", "redrive", "reprioritise", "discard", "pause", "limit", "move_clock", "upkeep", "sweep", "work"),
)


def _always(_: StoreMachine) -> bool:
    return True


def _any(*states: State) -> Callable[[StoreMachine], bool]:
    """There is a job in one of these states: else a step would be spent on nothing."""
    return lambda at: any(job.state in states for job in at.model.jobs.values())


def verb(
    weight: int = 2, *, when: Callable[[StoreMachine], object] = _always, **arguments: st.SearchStrategy[Any]
) -> Callable[[T], T]:
    """Make a method of the machine one of its steps."""

    def add(method: T) -> T:
        name = method.__name__  # type: ignore[attr-defined]
        VERBS[name] = Verb(name, weight, when, arguments)
        return method

    return add


class Step:
    """A verb with its arguments; reads as the call it is. (A dataclass would be printed field by field.)"""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        self.name, self.arguments = name, arguments

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={_brief(value)}' for name, value in self.arguments.items())})"


def _brief(value: object) -> str:
    """A submission without the fields that are as they always are, a long body by its length; all else as it is."""
    if isinstance(value, list):
        return f"[{', '.join(map(_brief, value))}]"
    if isinstance(value, bytes) and len(value) > 10:
        return f"{value[:1]!r} * {len(value)}"
    if not isinstance(value, Submission):
        return repr(value)
    plain = Submission(tenant=value.tenant, topic=value.topic, id=value.id)
    told = [field.name for field in fields(value) if getattr(value, field.name) != getattr(plain, field.name)]
    parts = [f"{name}={_brief(getattr(value, name))}" for name in ("tenant", "topic", "id", *told)]
    return f"Submission({', '.join(parts)})"


@st.composite
def steps(draw: st.DrawFn) -> Step:
    at = draw(machine)
    possible = [one for one in VERBS.values() if one.name not in at.left_out and one.when(at)]
    chosen = draw(st.sampled_from([one for one in possible for _ in range(one.weight)]))
    return Step(chosen.name, {name: draw(values) for name, values in chosen.arguments.items()})


class StoreMachine(RuleBasedStateMachine):
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

    @initialize(left_out=st.frozensets(st.sampled_from(OPTIONAL), max_size=3))
    def leave_out(self, left_out: frozenset[str]) -> None:
        self.left_out = left_out

    @rule(step=steps())
    def then(self, step: Step) -> None:
        getattr(self, step.name)(**step.arguments)
        self.run(self._compare())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        try:
            if hasattr(self, "db"):
                self.run(self.db.close())
        finally:
            self.loop.close()
            self.server.drop(self.database)

    # --- submit -------------------------------------------------------------------------------------------------------

    @verb(4, batch=batches())
    def submit(self, batch: list[Submission]) -> None:
        answers = self.run(store_calls.submit_all(self.db, self.names, batch))
        expected = self.model.submit([self._numbered(asked) for asked in batch])
        assert answers == expected
        self.sent |= dict.fromkeys(Ref(self.tenant_nos[asked.tenant], asked.id) for asked in batch)

    def _numbered(self, job: Submission) -> Asked:
        tenant_no = self.tenant_nos[job.tenant]
        (topic_no,) = (no for no, at in self.topics_by_no.items() if (at.tenant_no, at.name) == (tenant_no, job.topic))
        return Asked(ref=Ref(tenant_no, job.id), topic_no=topic_no, job=job, new_id=job.new_id)

    # --- claim --------------------------------------------------------------------------------------------------------

    @verb(
        4,
        when=_any(State.PENDING),
        where=topic_choices(),
        runs=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        short=st.integers(0, 2),
        owner=st.integers(1, 2),
        lease=lease_times,
    )
    def claim(self, where: tuple[int, list[int]], runs: list[int], short: int, owner: int, lease: timedelta) -> None:
        """From the head of the order, dealt out to several workers in runs."""
        self._claim(where, limit=max(1, sum(runs) - short), runs=runs, owner=owner, lease=lease)

    @verb(
        3,
        when=_any(State.PENDING),
        where=topic_choices(),
        limit=bounds,
        sweep_us=st.sampled_from([0, 0, 1, 10, 1_000_000, 10**10]),
        vague=st.just([]) | some_refs(State.PENDING),
    )
    def claim_from_the_mark(self, where: tuple[int, list[int]], limit: int, sweep_us: int, vague: list[Ref]) -> None:
        """As the claimer claims: where the watermark says, and by id what is known to have come back. Hints are no
        more than that: they may be of jobs in plain sight, on other topics, or not claimable at all."""
        tenant_no, topic_nos = where
        hints = [*self.hints[tenant_no], *(ref.id for ref in vague)]
        self._claim_marked(tenant_no, topic_nos, limit=limit, sweep_us=sweep_us, hints=hints)

    @verb(5, when=_any(State.PENDING), where=topic_choices(), limit=bounds, sweep_us=st.sampled_from([0, 0, 0, 10]))
    def claim_with_arrivals(self, where: tuple[int, list[int]], limit: int, sweep_us: int) -> None:
        """As the claimer claims: from the watermark on, and yet no better job is passed over."""
        tenant_no, topic_nos = where
        self._claim_marked(tenant_no, topic_nos, limit=limit, sweep_us=sweep_us, arrivals=True)

    @verb(1, when=_any(State.PENDING), tenant=tenant_indexes, stretches=st.integers(1, 4))
    def sweep(self, tenant: int, stretches: int) -> None:
        """Nothing is lost below the marks: after one claim above them, two rounds of sweeps find all, without hints."""
        tenant_no = self.tenant_nos[TENANTS[tenant]]
        topic_nos = [no for no, topic in self.topics_by_no.items() if topic.tenant_no == tenant_no]
        self._claim_marked(tenant_no, topic_nos, limit=MANY)
        sweep_us = self._marks(tenant_no, topic_nos).span_us // stretches + 1
        for _ in range(2 * (stretches + 1)):
            if not self.model.within_limits(self.model.claimable(tenant_no, topic_nos)):
                break
            self._claim_marked(tenant_no, topic_nos, limit=MANY, sweep_us=sweep_us)
        assert not self.model.within_limits(self.model.claimable(tenant_no, topic_nos))

    def _marks(self, tenant_no: int, topic_nos: list[int]) -> Watermark:
        return self.marks.setdefault((tenant_no, tuple(topic_nos)), Watermark(max_classes=2))

    def _claim_marked(
        self,
        tenant_no: int,
        topic_nos: list[int],
        *,
        limit: int,
        sweep_us: int = 0,
        hints: Sequence[UUID] = (),
        arrivals: bool = False,
    ) -> None:
        marks = self._marks(tenant_no, topic_nos)
        from_head = arrivals and marks.seen is None
        ranges = KeyRanges.whole(topic_nos) if from_head else marks.ranges(topic_nos, sweep_us=sweep_us)
        seen = marks.seen if arrivals else None
        claimed = self._claim((tenant_no, topic_nos), limit=limit, ranges=ranges, hints=hints, seen=seen)
        marks.learn(
            topic_nos,
            claimed.topic_nos,
            claimed.rank_classes,
            claimed.ranks_at,
            full=len(claimed) == limit,
            from_head=from_head,
            news=claimed.news,
        )
        if not arrivals:  # what has arrived was not looked for: the next one that does so must begin at the head
            marks.seen = None
        for job_id in claimed.ids:
            self.hints[tenant_no].pop(job_id, None)

    def _claim(
        self,
        where: tuple[int, list[int]],
        *,
        limit: int,
        runs: Sequence[int] = (MANY,),
        owner: int = 1,
        lease: timedelta = 60 * SECOND,
        ranges: KeyRanges | None = None,
        hints: Sequence[UUID] = (),
        seen: Seen | None = None,
    ) -> Claimed:
        tenant_no, topic_nos = where
        workers = [f"worker {number}" for number in range(len(runs))]
        candidates = self.model.claimable(tenant_no, topic_nos)
        if ranges is not None and seen is None:  # with the arrivals since then, a claim misses nothing
            candidates = self.model.visible(candidates, ranges, hints)
        allowed = self.model.within_limits(candidates)
        claimed = self.run(
            store_calls.claim(
                self.db,
                tenant_no=tenant_no,
                topic_nos=topic_nos,
                limit=limit,
                owner=owner,
                lease_ms=lease // timedelta(milliseconds=1),
                workers=workers,
                runs=runs,
                ranges=ranges,
                hints=hints,
                seen=seen,
            )
        )
        refs = [Ref(tenant_no, job_id) for job_id in claimed.ids]
        keys = [self.model.jobs[ref].record.order_key for ref in refs]
        assert len(set(refs)) == len(refs)
        assert set(refs) <= set(candidates)
        assert keys == [self.model.jobs[ref].record.order_key for ref in allowed[:limit]]
        assert list(zip(keys, claimed.ids, strict=True)) == sorted(zip(keys, claimed.ids, strict=True))
        dealt = [worker for worker, run in zip(workers, runs, strict=True) for _ in range(run)]
        for place, ref in enumerate(refs):
            job = self.model.claim(ref, owner=owner, worker=dealt[place], lease=lease)
            record = job.record
            assert (
                claimed.topic_nos[place],
                claimed.epochs[place],
                claimed.attempts[place],
                claimed.max_attempts[place],
                claimed.priorities[place],
                (claimed.rank_classes[place], claimed.ranks_at[place]),
                claimed.created_ats[place],
                claimed.lease_untils[place],
                claimed.workers[place],
                json.loads(claimed.headers[place] or "{}"),
                claimed.payloads[place],
            ) == (
                job.topic_no,
                record.epoch,
                record.attempt,
                record.max_attempts,
                record.priority,
                record.order_key,
                job.created_at,
                record.lease_until,
                job.worker,
                job.headers,
                job.payload,
            )
        return claimed

    def _came_back(self, ref: Ref, *, known: bool) -> None:
        """A job is pending again; `known` to this instance, or else only a sweep will find it."""
        if known and ref in self.model.jobs and self.model.jobs[ref].state is State.PENDING:
            self.hints[ref.tenant_no][ref.id] = None

    # --- leases -------------------------------------------------------------------------------------------------------

    @verb(
        when=_any(State.RUNNING),
        refs=some_refs(State.RUNNING),
        others=some_refs(State.RUNNING),
        epoch_off=st.sampled_from([0, 0, 0, -1, 1]),
        lease=lease_times,
    )
    def renew(self, refs: list[Ref], others: list[Ref], epoch_off: int, lease: timedelta) -> None:
        """Two parts in one call; the first may name other epochs than the true ones."""
        others = [ref for ref in others if ref not in refs]
        parts = [(refs, epoch_off, lease)] + [(others, 0, lease + SECOND)] * bool(others)
        held: list[leases.Held] = []
        expected: dict[tuple[int, UUID, int], Renewal] = {}
        for part, off, span in parts:
            epochs = [max(0, self.model.jobs[ref].record.epoch + off) if ref in self.model.jobs else 1 for ref in part]
            held.append(
                leases.Held(
                    tenant_no=part[0].tenant_no,
                    ids=[ref.id for ref in part],
                    epochs=epochs,
                    lease_ms=min(span, limits.LEASE_MAX) // timedelta(milliseconds=1),
                )
            )
            for ref, epoch in zip(part, epochs, strict=True):
                lost, cancel = self.model.renew(ref, epoch, lease=min(span, limits.LEASE_MAX))
                if lost or cancel:
                    expected[ref.tenant_no, ref.id, epoch] = Renewal(lost=lost, cancel=cancel)
        assert self.run(leases.renew(self.db, held)) == expected

    @verb(when=_any(State.RUNNING), limit=bounds, floored=st.booleans())
    def reap(self, limit: int, floored: bool) -> None:
        self._reap(limit=limit, floored=floored)

    def _reap(self, *, limit: int, floored: bool = False) -> None:
        """The oldest attempts first. The start of the oldest one that runs is a floor that hides nothing."""
        running = [job.claimed_at for job in self.model.jobs.values() if job.state is State.RUNNING and job.claimed_at]
        oldest = self.run(store_calls.oldest_running(self.db))
        assert oldest == min(running, default=None)
        lapsed, ahead = self.model.lapsed(), self.model.ahead()
        began = {ref: self.model.jobs[ref].claimed_at or self.model.now for ref in (*lapsed, *ahead)}
        floor = oldest if floored and oldest else BEGINNING
        reaped = self.run(leases.reap(self.db, limit=limit, floor=floor))
        refs = [Ref(one.tenant_no, one.id) for one in reaped]
        assert set(refs) <= set(lapsed)
        cut = [ref for ref in ahead if self.run(self._lease_until(ref)) != self.model.jobs[ref].record.lease_until]
        for ref in cut:
            self.model.cut(ref)
        assert sorted(began[ref] for ref in (*refs, *cut)) == sorted(began.values())[:limit]
        for ref, one in zip(refs, reaped, strict=True):
            answer = self.model.reap(ref)
            assert (one.state, one.run_at) == (answer.state, answer.run_at)

    async def _lease_until(self, ref: Ref) -> datetime:
        found: datetime = await self.db.fetchval(
            "SELECT lease_until FROM headgate.jobs WHERE tenant_no = $1 AND id = $2", ref.tenant_no, ref.id
        )
        return found

    @verb(when=_any(*WAITING), limit=bounds, floored=st.booleans(), known=st.booleans())
    def promote(self, limit: int, floored: bool, known: bool) -> None:
        self._promote(limit=limit, floored=floored, known=known)

    def _promote(self, *, limit: int, floored: bool = False, known: bool) -> None:
        """The longest due first. The next due time is a floor that hides nothing."""
        waiting = [job.record.run_at for job in self.model.jobs.values() if job.state in WAITING]
        next_due = self.run(store_calls.next_due(self.db))
        assert next_due == min(waiting, default=None)
        due = self.model.due()
        times = [self.model.jobs[ref].record.run_at for ref in due]
        floor = next_due if floored and next_due else BEGINNING
        promoted = self.run(store_calls.promote(self.db, limit=limit, floor=floor))
        refs = [Ref(one.tenant_no, one.id) for one in promoted]
        assert set(refs) <= set(due)
        assert sorted(one.run_at for one in promoted) == times[:limit]
        for ref, one in zip(refs, promoted, strict=True):
            self.model.promote(ref)
            job = self.model.jobs[ref]
            assert (one.topic_no, one.rank_class, one.rank_at, one.run_at) == (
                job.topic_no,
                *job.record.order_key,
                job.record.run_at,
            )
            self._came_back(ref, known=known)

    # --- settle -------------------------------------------------------------------------------------------------------

    @verb(4, when=lambda at: at.said or _any(State.RUNNING)(at), said=reports(), known=st.booleans())
    def settle(self, said: list[tuple[Ref, int, Outcome]], known: bool) -> None:
        self._settle(said, known=known)

    @verb(4, when=_any(State.PENDING), where=topic_choices(), results=st.lists(outcomes, min_size=1, max_size=4))
    def work(self, where: tuple[int, list[int]], results: list[Outcome]) -> None:
        """A worker takes some jobs and is soon done with them."""
        claimed = self._claim(where, limit=len(results))
        refs = [Ref(where[0], job_id) for job_id in claimed.ids]
        self._settle(list(zip(refs, claimed.epochs, results, strict=False)), known=False)

    def _settle(self, said: list[tuple[Ref, int, Outcome]], *, known: bool) -> None:
        flush = settling.OutcomeFlush()
        for ref, epoch, outcome in said:
            flush.add(ref.tenant_no, ref.id, epoch, outcome)
        settled = self.run(settling.settle(self.db, flush))
        answers = [settled.get(place, settling.APPLIED) for place in range(len(said))]
        expected = [self.model.settle(ref, epoch, outcome) for ref, epoch, outcome in said]
        assert [Answer(receipt=one.receipt, state=one.state, run_at=one.run_at) for one in answers] == expected
        self.said += said
        for ref, _, _ in said:
            self._came_back(ref, known=known)

    # --- verbs of operators -------------------------------------------------------------------------------------------

    @verb(when=_any(*LIVE), refs=some_refs(State.RUNNING) | some_refs(*LIVE))
    def cancel(self, refs: list[Ref]) -> None:
        changes = self.run(verbs.cancel(self.db, refs[0].tenant_no, [ref.id for ref in refs], who="ana"))
        expected = {ref.id: self.model.cancel(ref) for ref in refs}
        told = {job_id: (one.changed, one.state) for job_id, one in changes.items()}
        assert told == {job_id: one for job_id, one in expected.items() if one is not None}

    @verb(
        when=_any(*FINAL),
        refs=some_refs(*FINAL),
        edits=st.none() | st.lists(st.none() | payloads, min_size=4, max_size=4),
        delay=delays,
        known=st.booleans(),
    )
    def redrive(self, refs: list[Ref], edits: list[bytes | None] | None, delay: timedelta, known: bool) -> None:
        bodies = [] if edits is None else edits[: len(refs)]
        ids = [ref.id for ref in refs]
        requeued = self.run(verbs.redrive(self.db, refs[0].tenant_no, ids, payloads=bodies, delay=delay))
        expected: dict[UUID, tuple[int, ...]] = {}
        for place, ref in enumerate(refs):
            body = bodies[place] if bodies else None
            record = self.model.redrive(ref, payload=body, delay=delay, position=place + 1)
            if record is not None:
                expected[ref.id] = (self.model.jobs[ref].topic_no, *record.order_key)
                self._came_back(ref, known=known)
        assert {job_id: (one.topic_no, one.rank_class, one.rank_at) for job_id, one in requeued.items()} == expected

    @verb(
        when=_any(*QUEUED),
        refs=some_refs(*QUEUED),
        priority=priorities,
        known=st.booleans(),
    )
    def reprioritise(self, refs: list[Ref], priority: int, known: bool) -> None:
        changes = self.run(
            verbs.reprioritise(self.db, refs[0].tenant_no, [ref.id for ref in refs], priority=priority, who="ana")
        )
        expected = {ref.id: self.model.reprioritise(ref, priority) for ref in refs}
        told = {job_id: (one.changed, one.state) for job_id, (one, _) in changes.items()}
        assert told == {job_id: one for job_id, one in expected.items() if one is not None}
        for ref in refs:
            _, place = changes.get(ref.id, (None, None))
            if place is not None:
                job = self.model.jobs[ref]
                assert (place.topic_no, place.rank_class, place.rank_at) == (job.topic_no, *job.record.order_key)
                self._came_back(ref, known=known)

    @verb(1, when=_any(State.DEAD, State.CANCELLED), refs=some_refs(State.DEAD, State.CANCELLED))
    def discard(self, refs: list[Ref]) -> None:
        removed = self.run(verbs.discard(self.db, refs[0].tenant_no, [ref.id for ref in refs]))
        assert removed == {ref.id for ref in refs if self.model.discard(ref)}

    # --- pause --------------------------------------------------------------------------------------------------------

    @verb(
        1,
        when=lambda at: sum(pause.paused for pause in at.model.pauses.values()) < 2,
        what=targets(),
        reason=st.sampled_from(["", "deploy"]),
        until=st.sampled_from([None, -SECOND, AT_ONCE, SECOND]),
    )
    def pause(self, what: Target, reason: str, until: timedelta | None) -> None:
        moment = None if until is None else self.model.now + until
        paused_at = self.run(control.pause(self.db, what, reason=reason, who="ana", until=moment))
        self.model.pause(what, reason=reason, until=moment)
        assert paused_at == self.model.now

    @verb(1, whats=st.lists(targets(), min_size=1, max_size=3) | st.none())
    def resume(self, whats: list[Target] | None) -> None:
        """Some targets, whether they are paused or not; or else all."""
        for what in list(self.model.pauses) if whats is None else whats:
            assert self.run(control.resume(self.db, what)) == self.model.resume(what)

    # --- limits -------------------------------------------------------------------------------------------------------

    @verb(1, topic=st.integers(0, 5), most=st.sampled_from([None, None, 0, 1, 2, 5]))
    def limit(self, topic: int, most: int | None) -> None:
        """How many jobs of a topic may run at once; some may run already, and more than that."""
        known = [*self.topics_by_no.values()]
        chosen = known[topic % len(known)]
        self.run(topics.set_topic(self.db, self.names, chosen.tenant_no, chosen.name, changes={"max_running": most}))
        self.model.limits.pop(chosen.no, None)
        if most is not None:
            self.model.limits[chosen.no] = most

    # --- time and upkeep ----------------------------------------------------------------------------------------------

    @verb(
        1,
        step=st.sampled_from([MICRO, SECOND, 11 * SECOND, 61 * SECOND, timedelta(hours=1, seconds=1)])
        | st.sampled_from([-MICRO, -SECOND, timedelta(hours=-13), timedelta(days=9), timedelta(days=-3)]),
    )
    def move_clock(self, step: timedelta) -> None:
        """Forwards or back; the largest steps lead to days that have no partition yet."""
        self._set_clock(self.model.now + step)

    @verb(
        when=lambda at: at.edges(),
        edge=machine.flatmap(lambda at: st.sampled_from(at.edges())),
        off=st.sampled_from([-MICRO, AT_ONCE, MICRO]),
    )
    def move_clock_to_an_edge(self, edge: datetime, off: timedelta) -> None:
        """To the very instant at which something falls due or ends, or just beside it."""
        self._set_clock(edge + off)

    @verb(4, when=lambda at: at.edges(), known=st.booleans())
    def let_time_pass(self, known: bool) -> None:
        """To just after the next edge, with watchdog and promotion at work."""
        later = [moment for moment in self.edges() if moment >= self.model.now]
        self._set_clock(min(later, default=self.model.now) + MICRO)
        self._reap(limit=MANY)
        self._promote(limit=MANY, known=known)

    def edges(self) -> list[datetime]:
        near = self.model.now + timedelta(days=40)  # five years ahead nobody would come back
        moments = [job.record.run_at for job in self.model.jobs.values() if job.state in WAITING]
        moments += [job.record.lease_until for job in self.model.jobs.values() if job.record.lease_until is not None]
        moments += [key.expires_at for key in self.model.keys.values()]
        moments += [pause.until for pause in self.model.pauses.values() if pause.until is not None]
        return sorted({moment for moment in moments if moment < near})

    def _set_clock(self, at: datetime) -> None:
        self.run(self.clock.set(at))
        self.model.now = at

    @verb(1, marks=st.booleans(), limit=st.sampled_from([1, MANY]), vacuum=st.integers(0, 3))
    def upkeep(self, marks: bool, limit: int, vacuum: int) -> None:
        """None of it changes what anybody sees."""
        assert self.run(upkeep.forget_expired(self.db)) == self.model.forget_expired()
        assert self.run(upkeep.fold_flows(self.db, limit=limit)) <= limit
        if vacuum == 0:
            self.run(upkeep.vacuum_hot_tables(self.db, dead_rows=0))
        if marks:  # as after a lost connection: claims start from the head again
            self.marks.clear()
        self.run(upkeep.forget_arrivals(self.db, apart_ms=0))

    # --- reading ------------------------------------------------------------------------------------------------------

    @verb(1, when=lambda at: at.sent, tenant=tenant_indexes, matching=filters(), limit=st.integers(1, 5))
    def list_jobs(self, tenant: int, matching: listing.Filter, limit: int) -> None:
        """Page by page, every job that matches, newest id first."""
        tenant_no = self.tenant_nos[TENANTS[tenant]]
        rows: list[JobLine] = []
        cursor: str | None = None
        while True:
            page = self.run(store_calls.list_jobs(self.db, tenant_no, matching=matching, limit=limit, cursor=cursor))
            rows += page.rows
            cursor = page.cursor
            if cursor is None:
                break
        expected = [
            JobLine(
                id=JobId(ref.id),
                topic_no=job.topic_no,
                state=job.state,
                priority=job.record.priority,
                attempt=job.record.attempt,
                max_attempts=job.record.max_attempts,
                worker=job.worker,
                created_at=job.created_at,
                run_at=job.record.run_at,
                claimed_at=job.claimed_at,
                finished_at=job.finished_at,
                last_error=job.last_error,
            )
            for ref, job in sorted(self.model.jobs.items(), reverse=True)
            if ref.tenant_no == tenant_no and _matches(job, matching)
        ]
        assert rows == expected

    @verb(1, when=lambda at: at.sent, ref=machine.flatmap(lambda at: st.sampled_from([*at.sent])))
    def read_one(self, ref: Ref) -> None:
        """The job, its body, its result and its history, each by its own call."""
        job = self.model.jobs.get(ref)
        history = self.run(reads.events(self.db, *ref))
        assert [one.kind for one in history] == [one.kind for one in self.model.history(ref)]
        if job is None:
            with pytest.raises(NotFound):
                self.run(reads.get(self.db, *ref))
            return
        view = self.run(reads.get(self.db, *ref))
        result = self.run(reads.result(self.db, *ref))
        record = job.record
        assert (view.state, view.epoch, view.attempt, view.run_at, view.lease_until, view.finished_at) == (
            record.state,
            record.epoch,
            record.attempt,
            record.run_at,
            record.lease_until,
            job.finished_at,
        )
        assert (view.rank_class, view.rank_at) == ((None, None) if record.state.is_final else record.order_key)
        assert (result.state, result.result, result.last_error) == (record.state, job.result, job.last_error)
        assert self.run(reads.payload(self.db, *ref)) == job.payload

    # --- after every step ---------------------------------------------------------------------------------------------

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


def _matches(job: Job, matching: listing.Filter) -> bool:
    return (
        (matching.states is None or job.state in matching.states)
        and (matching.topic_nos is None or job.topic_no in matching.topic_nos)
        and (matching.created_from is None or job.created_at >= matching.created_from)
        and (matching.created_before is None or job.created_at < matching.created_before)
        and (matching.priority_from is None or job.record.priority >= matching.priority_from)
        and (matching.priority_to is None or job.record.priority <= matching.priority_to)
        and job.tags.issuperset(matching.tags or ())
    )


@given(
    asked=st.lists(
        st.tuples(policies(), st.integers(1, 40) | st.integers(1, limits.MAX_ATTEMPTS_LIMIT), job_ids()),
        min_size=1,
        max_size=20,
    )
)
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_store_waits_as_long_as_the_policy_says(database: str, asked: list[tuple[RetryPolicy, int, JobId]]) -> None:
    """Any policy at any attempt, which the runs below are too short to see."""

    async def waits() -> list[int]:
        db, names = await connect(database, application_name="headgate model test"), Names()
        try:
            tenant = await names.tenant(db, "acme")
            await db.execute("UPDATE headgate.tenants SET max_policies = 1000000")  # all examples share the database
            numbers = [await names.policy_no(db, tenant, policy) for policy, _, _ in asked]
            rows = await db.fetch(
                "SELECT headgate.retry_delay_ms_v1(p.kind, p.base_ms, p.cap_ms, p.delays_ms, u.attempt, u.id)"
                " FROM unnest($1::int[], $2::int[], $3::uuid[]) WITH ORDINALITY AS u(policy_no, attempt, id, n)"
                " JOIN headgate.retry_policies p USING (policy_no) ORDER BY u.n",
                numbers,
                [attempt for _, attempt, _ in asked],
                [job_id for _, _, job_id in asked],
            )
        finally:
            await db.close()
        return [row[0] for row in rows]

    expected = [policy.delay_ms(attempt, jitter=jitter_of(job_id, attempt)) for policy, attempt, job_id in asked]
    assert asyncio.run(waits()) == expected


@pytest.mark.timeout(SHRINKING + 3 * EXAMPLES)
def test_the_store_does_what_its_model_does(postgres: Server, template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreMachine, "server", postgres, raising=False)
    monkeypatch.setattr(StoreMachine, "template", template, raising=False)
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
