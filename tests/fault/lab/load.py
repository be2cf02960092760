"""The mixed load: many kinds of jobs and verbs by several tenants, at a fixed modest rate, chosen by a seed.

Modest, so that a drain after the faults is quick: what is to be shown is correctness, not speed. Every operation is
noted when it is asked for and when it is answered. One with a key or an id of its own whose answer was lost is asked
again, as a careful client would.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, cast
from uuid import UUID

from headgate import Headgate
from headgate.domain.dependencies import Unique
from headgate.domain.errors import HeadgateError, Refused
from headgate.domain.timestamps import unix_us
from headgate.domain.topic_limits import Rate
from headgate.sdk import (
    Forbidden,
    InvalidInput,
    JobOptions,
    NotAcknowledged,
    NotConnected,
    NotFound,
    RetryPolicy,
    SubmitConflict,
    SubmitRefused,
    Unauthenticated,
    VersionConflict,
)
from headgate.sdk.admin.bulk import PlanOptions
from headgate.sdk.admin.topics import TopicSettings
from headgate.sdk.options import prepared
from headgate.sdk.submitting import Bound
from tests.fault.lab.history import FAIL, INFO, OK, Recorder
from tests.fault.lab.load_notes import (
    Target,
    body_no,
    noted_change,
    noted_options,
    noted_target,
    plain_settings,
    random_id,
    resume_target,
)
from tests.fault.lab.worker import TOPICS

RATE: Final = 40.0
IN_FLIGHT: Final = 200
SUBMIT_SECONDS: Final = 10.0
AGAIN: Final = 8
"""How often an operation with an unknown outcome is asked again."""
RULES_SECONDS: Final = 2.0
"""A server that was not asked itself learns of a topic's rules by its next tick; until then jobs go without them."""
BATCH_SECONDS: Final = 12
BULK_SECONDS: Final = 8
UNIQUE_SECONDS: Final = 0.8
"""Always the same delay: a job that is replaced is then never due sooner than it was before."""
KNOWN_JOBS: Final = 400
BACKLOG: Final = (-10, 0, 10, -10, 0, 10)
"""Priorities of the batches of ranked jobs that come to wait together."""
BACKLOG_BATCH, BACKLOG_MS = 25, 150
BACKLOG_WAITS: Final = 1.2
"""Seconds: longer than a claim may be in flight (checker/order.py)."""
RETRY: Final = RetryPolicy.fixed(timedelta(milliseconds=200))
LIMITS: Final[dict[str, TopicSettings]] = {
    "limited": {"max_running": 3},
    "rated": {"rate": Rate(count=20, period=timedelta(seconds=1), burst=5)},
    "keyed": {"max_running_per_key": 1},
    "ordered": {"ordered_by_key": True},
}
MAX_ATTEMPTS: Final = {"failing": 3, "poison": 3, "fatal": 5}
PAUSED_TOPICS: Final = ("slow", "fast", "keyed", "ranked")
SCHEDULES: Final[dict[str, dict[str, Any]]] = {
    "each-second": {"every": 1},
    "every-third-all": {"every": 3, "catch_up": "all"},
    "each-second-skip": {"every": 1, "overlap": "skip"},
    "by-the-minute": {"cron": "* * * * *", "zone": "Europe/Berlin"},
}
WEIGHTS: Final[dict[str, int]] = {
    "fast": 14, "slow": 8, "delayed": 5, "flaky": 4, "failing": 2, "fatal": 1, "nacky": 2, "snoozy": 2, "handback": 2,
    "progress": 2, "thread": 2, "cancellable": 3, "limited": 8, "rated": 3, "keyed": 5, "ordered": 3, "ranked": 8,
    "idempotent": 6, "own_id": 3, "unique": 8, "many": 2, "batch": 2, "depends": 2, "bulk": 1,
    "cancel": 3, "pause": 2, "redrive": 2, "discard": 1, "get": 2, "list": 2, "status": 1, "trigger": 1, "poison": 0,
}  # fmt: skip
_CERTAIN: Final = (InvalidInput, NotFound, Refused, SubmitConflict, SubmitRefused, Unauthenticated, Forbidden,
                   VersionConflict)  # fmt: skip
Verb = Callable[["Tenant"], Awaitable[None]]
"""What is paused: a topic, the tenant or everything, as arguments of `pause` and `resume`."""


def status_of(error: HeadgateError, *, submit: bool) -> str:
    """`fail` if certainly nothing was done. A submit tells "not sent" from "not answered"; other calls do not."""
    if isinstance(error, _CERTAIN):
        return FAIL
    return FAIL if submit and isinstance(error, NotConnected) else INFO


@dataclass(slots=True)
class Tenant:
    """One tenant's client and what it remembers of its jobs."""

    name: str
    hg: Headgate
    jobs: deque[UUID]
    keys: deque[tuple[str, str, bytes]]  # key, topic, body


class Load:
    """Keeps servers busy until `stop`; `finish` leaves nothing that would go on by itself."""

    def __init__(
        self,
        clients: Mapping[str, Headgate],
        recorder: Recorder,
        *,
        system: Headgate,
        seed: int = 1,
        rate: float = RATE,
        weights: Mapping[str, int] | None = None,
        schedules: Sequence[str] = tuple(SCHEDULES),
    ) -> None:
        self.recorder = recorder
        self._system = system  # pauses everything, which no tenant may
        self.rate = rate
        self.done = 0
        self._chance = random.Random(seed)
        self._schedules = tuple(schedules)
        chosen = {**WEIGHTS, **(weights or {})} if weights is not None else WEIGHTS
        self._names = [name for name, weight in chosen.items() if weight]
        self._weights = [chosen[name] for name in self._names]
        self._tenants = [Tenant(name, hg, deque(maxlen=KNOWN_JOBS), deque(maxlen=40)) for name, hg in clients.items()]
        self._running: set[asyncio.Task[None]] = set()
        self._clock: asyncio.Task[None] | None = None
        self._bodies = 0
        self._keys = 0
        self._bulks = 0

    # --- its life ----------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Topics with their limits, and schedules: before any fault, so that the checker knows what holds."""
        async with asyncio.TaskGroup() as tasks:
            for tenant in self._tenants:
                for topic in TOPICS:
                    tasks.create_task(self._configure(tenant, topic))
        for tenant in self._tenants:
            for name in self._schedules:
                await self._put_schedule(tenant, name)
        await asyncio.sleep(RULES_SECONDS)

    def start(self) -> None:
        """Begin."""
        self._clock = asyncio.create_task(self._tick(), name="load")

    async def stop(self, *, within: float = 60.0) -> None:
        """Begin nothing more, and wait for what is under way."""
        if self._clock is not None:
            self._clock.cancel()
            await asyncio.wait((self._clock,))
            self._clock = None
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=within)
            for task in late:
                task.cancel()

    async def finish(self) -> None:
        """Resume every topic and delete every schedule: what is left can drain. Asked until it is answered."""
        for tenant in self._tenants:
            targets: list[Target] = [{"topic": topic} for topic in PAUSED_TOPICS]
            for target in [*targets, {"tenant": True}, {"everything": True}]:
                await self._certainly(
                    tenant,
                    "resume",
                    noted_target(target),
                    partial(resume_target, self._pausing(tenant, target), target),
                )
            for name in self._schedules:
                pause = partial(tenant.hg.admin.schedules.pause, name)
                await self._certainly(tenant, "schedule_pause", {"name": name}, pause)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + 1 / self.rate, loop.time() - 1.0)  # what a stall has missed is not made up for
            await asyncio.sleep(max(0.0, due - loop.time()))
            name = self._chance.choices(self._names, self._weights)[0]
            tenant = self._chance.choice(self._tenants)
            if len(self._running) >= IN_FLIGHT:
                continue
            task = asyncio.create_task(self._one(name, tenant), name=f"load {name}")
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _one(self, name: str, tenant: Tenant) -> None:
        verb = getattr(self, f"_do_{name}", None)
        if verb is not None:
            await verb(tenant)
        else:
            await self.submit(tenant, name, ms=self._chance.choice((5, 20, 60, 600)))
        self.done += 1

    # --- submits -----------------------------------------------------------------------------------------------------

    def tenant(self, name: str) -> Tenant:
        """The tenant of that name, for scenarios that submit jobs of their own."""
        return next(tenant for tenant in self._tenants if tenant.name == name)

    async def submit(
        self, tenant: Tenant, topic: str, *, body: bytes = b"", ms: int = 10, known_later: bool = True, **options: Any
    ) -> UUID | None:
        """One job, asked for once more while it is not known whether it exists and asking is safe.

        `known_later`: the load may cancel, redrive or discard it.
        """
        own_id, key = options.get("id"), options.get("key")
        body = body or self._body(tenant, ms=ms, **options.pop("extra", {}))
        again = f"{own_id or key or ''}"
        for _ in range(AGAIN if again else 1):
            op = self.recorder.invoke(
                "submit", tenant=tenant.name, topic=topic, body=body_no(body), **noted_options(options)
            )
            try:
                handle = await tenant.hg.submit(
                    topic, body, **cast("JobOptions", {"timeout": SUBMIT_SECONDS, **options})
                )
            except HeadgateError as error:
                status = status_of(error, submit=True)
                at = error.job_id if isinstance(error, NotAcknowledged) else None
                self.recorder.end(op, status, error=type(error).__name__, text=str(error)[:200], job=at and at.hex)
                if status == FAIL and not isinstance(error, NotConnected):
                    return None
                continue
            self.recorder.end(op, OK, job=handle.id.hex, created=handle.created)
            if known_later:
                tenant.jobs.append(handle.id)
            return handle.id
        return None

    def _body(self, tenant: Tenant, *, ms: int, **extra: object) -> bytes:
        self._bodies += 1
        return json.dumps({"b": self._bodies, "tenant": tenant.name, "ms": ms, **extra}).encode()

    async def _do_slow(self, tenant: Tenant) -> None:
        await self.submit(tenant, "slow", ms=self._chance.choice((5, 50, 500, 2000)))

    async def _do_limited(self, tenant: Tenant) -> None:
        await self.submit(tenant, "limited", ms=self._chance.choice((50, 900)))

    async def _do_thread(self, tenant: Tenant) -> None:
        await self.submit(tenant, "thread", ms=self._chance.choice((20, 1000)))

    async def _do_delayed(self, tenant: Tenant) -> None:
        job = await self.submit(tenant, "slow", ms=5, delay=self._chance.choice((0.2, 0.5, 1, 2, 3)))
        if job is not None and self._chance.random() < 0.2:
            await self._cancel(tenant, job)

    async def _do_ranked(self, tenant: Tenant) -> None:
        fails = self._chance.choice((0, 0, 0, 0, 1))  # it comes back at its old place
        priority = self._chance.choice((-10, 0, 10))
        await self.submit(tenant, "ranked", ms=40, extra={"fails": fails}, priority=priority)

    async def _do_rated(self, tenant: Tenant) -> None:
        await self.submit_many(tenant, "rated", 12)  # more at once than may start at once

    async def _do_keyed(self, tenant: Tenant) -> None:
        key = f"k{self._chance.randrange(4)}"
        for _ in range(2):  # the second comes while the first one runs, most often
            await self.submit(tenant, "keyed", ms=50, limit_key=key)

    async def _do_ordered(self, tenant: Tenant) -> None:
        key = f"o{self._chance.randrange(3)}"
        for _ in range(2):  # the second comes while the first one runs, most often
            await self.submit(tenant, "ordered", ms=50, limit_key=key)

    async def _do_flaky(self, tenant: Tenant) -> None:
        await self.submit(tenant, "flaky", extra={"fails": self._chance.choice((1, 2))})

    async def _do_cancellable(self, tenant: Tenant) -> None:
        job = await self.submit(tenant, "cancellable", ms=1500)
        if job is not None:
            await asyncio.sleep(self._chance.choice((0.0, 0.1, 0.5)))
            await self._cancel(tenant, job)

    async def _do_idempotent(self, tenant: Tenant) -> None:
        if tenant.keys and self._chance.random() < 0.5:
            key, topic, body = self._chance.choice(tuple(tenant.keys))
        else:
            self._keys += 1
            key, topic = f"key-{self._keys}", "fast"
            body = self._body(tenant, ms=5)
            tenant.keys.append((key, topic, body))
        await self.submit(tenant, topic, body=body, key=key)

    async def _do_own_id(self, tenant: Tenant) -> None:
        job = tenant.hg.handle(random_id(self._chance)).id
        body = self._body(tenant, ms=5)
        for _ in range(self._chance.choice((1, 2, 2))):
            await self.submit(tenant, "fast", body=body, id=job)
            await asyncio.sleep(self._chance.choice((0.0, 0.3)))  # it may have ended meanwhile, and must not run again

    async def _do_unique(self, tenant: Tenant) -> None:
        on_conflict = self._chance.choice(("keep", "keep", "replace"))
        kept: dict[str, Any] = {} if on_conflict == "keep" else {"delay": UNIQUE_SECONDS}
        # Each way has keys of its own: one that is replaced is not due at once, and must not become so.
        key = f"{on_conflict}-{self._chance.randrange(2)}"
        await self.submit(tenant, "unique", ms=30, unique=Unique(key=key, on_conflict=on_conflict), **kept)

    async def _do_depends(self, tenant: Tenant) -> None:
        topics = self._chance.choice((("slow", "slow"), ("slow", "slow", "slow"), ("slow", "fatal")))
        parents = [job for job in [await self.submit(tenant, topic, ms=30) for topic in topics] if job is not None]
        needs, otherwise = self._chance.choice((("ended", "cancel"), ("succeeded", "cancel"), ("succeeded", "ignore")))
        if parents:
            await self.submit(
                tenant, "slow", ms=5, depends_on=parents, needs=needs, on_parent_failure=otherwise, known_later=False
            )

    async def _do_many(self, tenant: Tenant) -> None:
        tenant.jobs.extend(await self.submit_many(tenant, "slow", self._chance.choice((5, 10, 20))))

    async def submit_many(
        self, tenant: Tenant, topic: str, number: int, *, ms: int = 5, priority: int = 0, **extra: object
    ) -> list[UUID]:
        """So many jobs by one call; none when it was not answered."""
        bodies = [self._body(tenant, ms=ms, **extra) for _ in range(number)]
        op = self.recorder.invoke("submit_many", tenant=tenant.name, topic=topic, priority=priority,
                                  bodies=[body_no(b) for b in bodies])  # fmt: skip
        try:
            handles = await tenant.hg.submit_many(topic, bodies, timeout=SUBMIT_SECONDS, priority=priority)
        except HeadgateError as error:
            self.recorder.end(op, INFO, error=type(error).__name__, text=str(error)[:200])  # some of them may exist
            return []
        self.recorder.end(op, OK, jobs=[handle.id.hex for handle in handles])
        return [handle.id for handle in handles]

    async def ranked_backlog(self, tenant: Tenant) -> None:
        """Let more ranked jobs wait at once than there are slots: their topic is paused while they come."""
        target: Target = {"topic": "ranked"}
        pause = partial(tenant.hg.admin.pause, reason="backlog", **target)
        await self.call(tenant, "pause", noted_target(target), pause)
        for priority in BACKLOG:
            await self.submit_many(tenant, "ranked", BACKLOG_BATCH, ms=BACKLOG_MS, priority=priority)
        await asyncio.sleep(BACKLOG_WAITS)
        await self._certainly(tenant, "resume", noted_target(target), partial(resume_target, tenant.hg, target))

    async def _do_batch(self, tenant: Tenant) -> None:
        bodies, last = [self._body(tenant, ms=5) for _ in range(4)], self._body(tenant, ms=5)
        batch = tenant.hg.batch("lab", on_done=Bound("callback", last, prepared()), expires_in=BATCH_SECONDS)
        op = self.recorder.invoke("batch", tenant=tenant.name, topic="batched", batch=batch.id.hex,
                                  bodies=[body_no(body) for body in (*bodies, last)])  # fmt: skip
        jobs: list[str] = []
        try:
            await batch.open()
            for body in bodies:  # one by one: those stored before an error are known
                handle = await batch.submit_to("batched", body, timeout=SUBMIT_SECONDS)
                jobs.append(handle.id.hex)
            sealed = await batch.seal()
        except HeadgateError as error:
            self.recorder.end(op, INFO, error=type(error).__name__, text=str(error)[:200], jobs=jobs)
            return
        self.recorder.end(op, OK, jobs=jobs, expired=sealed.expired)

    async def _do_bulk(self, tenant: Tenant) -> None:
        """Jobs of their own tag, and then one verb over all of them."""
        self._bulks += 1
        tag, verb = f"bulk-{self._bulks}", self._chance.choice(("cancel", "reprioritise", "redrive"))
        topic = "fatal" if verb == "redrive" else "bulk"
        delay: dict[str, Any] = {} if verb == "redrive" else {"delay": BULK_SECONDS}
        jobs: list[UUID] = []
        for _ in range(self._chance.choice((2, 5))):
            job = await self.submit(tenant, topic, ms=5, tags=[tag], extra={"tag": tag}, known_later=False, **delay)
            jobs += [] if job is None else [job]
        if verb == "redrive":
            jobs = await self._dead(tenant, jobs)
        number, reason = random_id(self._chance), f"{verb} {tag}"
        more: PlanOptions = {"reason": reason}
        if verb == "reprioritise":
            more["priority"] = 5
        data = {"id": number.hex, "verb": verb, "tag": tag, "reason": reason, "jobs": [job.hex for job in jobs]}
        start = partial(tenant.hg.admin.bulk.start, verb, f"tag:{tag}", id=number, **more)
        await self._certainly(tenant, "operation", data, start)

    async def _dead(self, tenant: Tenant, jobs: Sequence[UUID]) -> list[UUID]:
        """Those of them that were seen dead, within some seconds."""
        dead: list[UUID] = []
        for _ in range(10):
            await asyncio.sleep(0.3)
            for job in jobs:
                with suppress(HeadgateError):
                    if job not in dead and (await tenant.hg.get(job)).state == "dead":
                        dead.append(job)
            if len(dead) == len(jobs):
                break
        return dead

    # --- verbs -------------------------------------------------------------------------------------------------------

    async def call(
        self, tenant: Tenant, what: str, data: Mapping[str, object], ask: Callable[[], Awaitable[Any]],
        answer: Callable[[Any], Mapping[str, object]] = lambda _: {},
    ) -> Any:  # fmt: skip
        """One call, noted; None when it was not answered with success."""
        op = self.recorder.invoke(what, tenant=tenant.name, **data)
        try:
            found = await ask()
        except HeadgateError as error:
            self.recorder.end(op, status_of(error, submit=False), error=type(error).__name__, text=str(error)[:200])
            return None
        self.recorder.end(op, OK, **answer(found))
        return found

    async def _certainly(
        self, tenant: Tenant, what: str, data: Mapping[str, object], ask: Callable[[], Awaitable[Any]]
    ) -> None:
        for _ in range(AGAIN):
            if await self.call(tenant, what, data, ask) is not None:
                return

    async def _cancel(self, tenant: Tenant, job: UUID) -> None:
        await self.call(tenant, "cancel", {"job": job.hex}, lambda: tenant.hg.admin.jobs.cancel(job), noted_change)

    async def _do_cancel(self, tenant: Tenant) -> None:
        if tenant.jobs:
            await self._cancel(tenant, self._chance.choice(tuple(tenant.jobs)[-30:]))

    async def _do_redrive(self, tenant: Tenant) -> None:
        if tenant.jobs:
            job = self._chance.choice(tuple(tenant.jobs))
            await self.call(
                tenant, "redrive", {"job": job.hex}, lambda: tenant.hg.admin.jobs.redrive(job), noted_change
            )

    async def _do_discard(self, tenant: Tenant) -> None:
        if not tenant.jobs:
            return
        job: UUID | None = self._chance.choice(tuple(tenant.jobs))
        if self._chance.random() < 0.5:  # one on which much hangs: nothing of that may stay behind
            job = await self.submit(tenant, "keyed", delay=BULK_SECONDS, limit_key="discarded", tags=["discarded"],
                                    extra={"pad": "x" * 1500}, known_later=False)  # fmt: skip
            if job is not None:
                await self._cancel(tenant, job)
        if job is not None:
            await self.call(
                tenant, "discard", {"job": job.hex}, lambda: tenant.hg.admin.jobs.discard(job), noted_change
            )

    async def _do_pause(self, tenant: Tenant) -> None:
        topic = self._chance.choice(PAUSED_TOPICS)
        target: Target = self._chance.choice(
            ({"topic": topic}, {"topic": topic}, {"tenant": True}, {"everything": True})
        )
        lasting = self._chance.choice((0.3, 0.8, 1.5) if "topic" in target else (0.2, 0.4, 0.8))
        ends = self._chance.random() < 0.5
        until = datetime.now(UTC) + timedelta(seconds=lasting) if ends else None
        data = {**noted_target(target), **({"until_us": unix_us(until)} if until is not None else {})}
        hg = self._pausing(tenant, target)
        await self.call(tenant, "pause", data, lambda: hg.admin.pause(**target, reason="load", until=until))
        await asyncio.sleep(lasting)
        if not ends:
            await self._certainly(tenant, "resume", noted_target(target), lambda: resume_target(hg, target))

    def _pausing(self, tenant: Tenant, target: Target) -> Headgate:
        return self._system if "everything" in target else tenant.hg

    async def _do_get(self, tenant: Tenant) -> None:
        if tenant.jobs:
            job = self._chance.choice(tuple(tenant.jobs))
            await self.call(tenant, "get", {"job": job.hex}, lambda: tenant.hg.get(job, payload=True),
                            lambda info: {"jobs": [(info.id.hex, info.tenant, info.state)]})  # fmt: skip

    async def _do_list(self, tenant: Tenant) -> None:
        jobs = tenant.hg.admin.jobs_matching(self._chance.choice(("", "state:dead", "topic:slow", "state:pending")))
        await self.call(tenant, "list", {}, lambda: jobs.page(limit=50),
                        lambda page: {"jobs": [(job.id.hex, job.tenant, job.state) for job in page.jobs]})  # fmt: skip

    async def _do_status(self, tenant: Tenant) -> None:
        await self.call(tenant, "status", {}, tenant.hg.admin.status,
                        lambda found: {"topics": {one.topic: one.counts for one in found.topics}})  # fmt: skip

    async def _do_trigger(self, tenant: Tenant) -> None:
        if self._schedules:
            name, request = self._chance.choice(self._schedules), random_id(self._chance)
            await self.call(tenant, "trigger", {"name": name, "request": request.hex},
                            lambda: tenant.hg.admin.schedules.trigger(name, request_id=request),
                            lambda job: {"job": job.hex})  # fmt: skip

    async def _configure(self, tenant: Tenant, topic: str) -> None:
        settings: TopicSettings = {"retry": RETRY, "max_attempts": MAX_ATTEMPTS.get(topic, 12), **LIMITS.get(topic, {})}
        await self.call(tenant, "set_topic", {"topic": topic, "settings": plain_settings(settings)},
                        lambda: tenant.hg.admin.topics.set(topic, **settings))  # fmt: skip

    async def _put_schedule(self, tenant: Tenant, name: str) -> None:
        made = SCHEDULES[name]
        body = self._body(tenant, ms=5, schedule=name)
        await self.call(tenant, "schedule_put", {"name": name, **made},
                        lambda: tenant.hg.admin.schedules.put(name, "scheduled", body, **made))  # fmt: skip
