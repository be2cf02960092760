"""The scheduler of one instance: reads what is due, plans it, has it fired. Every instance runs one; none leads.

    read (unlocked)  →  plan (pure)  →  fire (one transaction: compare, swap the cursor, make the jobs)

Two instances may plan the same occurrence; one of them fires it, and the other's call finds the schedule changed. An
instance that dies or freezes anywhere in this chain holds nothing: before the commit nothing happened, after it
everything. A paused topic or tenant does not concern it: its jobs just queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import uniform
from typing import Final, Protocol

from headgate.domain.errors import HeadgateError
from headgate.domain.schedules import LOOK_SECONDS, Due, DueSchedule, Fired, Firing, plan

log = logging.getLogger("headgate.scheduler")
AT_ONCE: Final = 1_000
"""Schedules read and fired at a time."""
JOBS_AT_ONCE: Final = 2_500
"""Jobs of one transaction: schedules that catch up on many are spread over several."""
IDLE_SECONDS: Final = 5.0
"""Between looks while there is nothing to fire at all: who stores a schedule wakes its own instance."""
_APART: Final = 0.01
_CONTENDED: Final = 0.05
_OFF_LOOP_FROM: Final = 50  # planning takes some 15 µs a schedule, milliseconds when much is caught up
_BACKOFF_FIRST, _BACKOFF_MOST = 0.1, 5.0
_TIDY_EVERY: Final = 3_600


class FiringStore(Protocol):
    """The database's side."""

    async def due(self, *, limit: int) -> Due: ...
    async def fire(self, firings: Sequence[Firing]) -> Fired: ...
    async def postpone(self, schedule: DueSchedule, error: HeadgateError) -> None: ...
    async def forget_ended(self) -> int: ...


class Scheduler:
    """Fires what is due: looks once a second, and at the moment the next occurrence is known to come."""

    def __init__(
        self, store: FiringStore, *, topics_ready: Callable[[Iterable[int]], None], look_seconds: float = LOOK_SECONDS
    ) -> None:
        """`topics_ready` is called with the topics that got jobs, so that they are claimed at once."""
        self._store, self._topics_ready, self._look = store, topics_ready, look_seconds
        self._stopped = asyncio.Event()
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """A schedule was stored or resumed here: look now, it may be due before the next look."""
        self._woken.set()

    def stop(self) -> None:
        """Fire no more; what is on its way to the database is finished first."""
        self._stopped.set()
        self._woken.set()

    async def run(self) -> None:
        """Fire until `stop`; a database that is away is asked again after growing waits."""
        loop = asyncio.get_running_loop()
        backoff, tidied = 0.0, loop.time()
        while not self._stopped.is_set():
            self._woken.clear()
            try:
                wait = (await self.run_once()).wait
                backoff = 0.0
                if loop.time() - tidied > _TIDY_EVERY:
                    tidied = loop.time()
                    await self._store.forget_ended()
            except HeadgateError as error:
                backoff = min(_BACKOFF_MOST, max(_BACKOFF_FIRST, backoff * 2))
                log.warning("fire_failed error=%s retry_in=%.2fs", error, backoff)
                # Jittered: after a database restart all instances would come back in step.
                wait = backoff * uniform(0.5, 1.0)  # noqa: S311 - not a secret
            try:
                await asyncio.wait_for(self._woken.wait(), wait)
            except TimeoutError:
                continue

    async def run_once(self) -> Fired:
        """Fire up to a thousand due schedules; `wait` says after how many seconds to look again."""
        due = await self._store.due(limit=AT_ONCE)
        if not due.schedules:
            if due.next_look is None:
                return Fired(wait=max(self._look, IDLE_SECONDS))
            return Fired(wait=min(self._look, max(_APART, (due.next_look - due.now).total_seconds())))
        if len(due.schedules) < _OFF_LOOP_FROM:
            plans, failed = plan_all(due)
        else:
            plans, failed = await asyncio.to_thread(plan_all, due)
        for schedule, error in failed:
            log.warning("schedule_failed schedule_no=%d error=%s", schedule.schedule_no, error)
            await self._store.postpone(schedule, error)
        done = Fired(postponed=len(failed), seen=len(due.schedules), wait=_APART)
        for part in _parts(plans):
            done += await self._store.fire(part)
            if done.topic_nos:
                self._topics_ready(done.topic_nos)
        if not done.schedules + done.postponed + done.waiting:
            # Another instance was quicker, or is at it. What it leaves is seen in a moment; they should not keep step.
            done = replace(done, wait=_CONTENDED * uniform(0.2, 1.0))  # noqa: S311 - not a secret
        return done


def plan_all(due: Due) -> tuple[list[Firing], list[tuple[DueSchedule, HeadgateError]]]:
    """Plan each by itself: one that cannot be planned (its zone was removed) does not stall the rest."""
    plans: list[Firing] = []
    failed: list[tuple[DueSchedule, HeadgateError]] = []
    for schedule in due.schedules:
        try:
            plans.append(plan(schedule, now=due.now))
        except HeadgateError as error:
            failed.append((schedule, error))
    return plans, failed


def _parts(plans: Sequence[Firing]) -> Iterable[list[Firing]]:
    part: list[Firing] = []
    jobs = 0
    for firing in plans:
        if part and jobs + len(firing.runs) > JOBS_AT_ONCE:
            yield part
            part, jobs = [], 0
        part.append(firing)
        jobs += len(firing.runs)
    if part:
        yield part
