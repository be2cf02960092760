"""The ticker: one tick a second, sooner when a waiting job falls due sooner; the net under all wakes.

A tick is one call for the whole instance. It promotes due jobs, looks for topics with pending jobs, reads the control
rows; and once a second attempts whose lease has expired are reaped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from headgate.dispatch.demands import Demands
from headgate.dispatch.gate import Gate
from headgate.dispatch.limit_timers import LimitTimers
from headgate.dispatch.ports import TickStore
from headgate.dispatch.scans import Scanner
from headgate.dispatch.tick_times import TICKS_APART, TickTimes
from headgate.dispatch.wakes import Wakes
from headgate.dispatch.watchdog import WatchdogGate
from headgate.domain.dispatching import Tick
from headgate.domain.errors import HeadgateError, InstanceForgotten
from headgate.domain.keyrange import HIGHEST, LOWEST, KeyRanges
from headgate.domain.limits import LEASE_MIN, REAP_AT_ONCE
from headgate.domain.tallies import Tallies

log = logging.getLogger("headgate.dispatch")
_LOCKED_TICKS_APART: Final = 0.05


class Ticker:
    """Ticks for one instance."""

    def __init__(
        self,
        store: TickStore,
        times: TickTimes,
        demands: Demands,
        gate: Gate,
        wakes: Wakes,
        limit_timers: LimitTimers,
        scanner: Scanner,
        *,
        watchdog: WatchdogGate | None = None,
        tallies: Tallies | None = None,
        on_unblock: Callable[[], None] = lambda: None,
        on_bulk: Callable[[], None] = lambda: None,
        on_webhook: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._times, self._demands, self._gate, self._wakes = store, times, demands, gate, wakes
        self._limit_timers, self._scanner = limit_timers, scanner
        self._watchdog = watchdog  # without one, expired leases are reaped at every tick
        self._on_unblock = on_unblock  # jobs that waited for others may be claimable
        self._on_bulk = on_bulk  # some bulk operations are not over
        self._on_webhook = on_webhook  # events are due to be delivered
        self._stopped = False
        self._tallies = tallies or Tallies()
        self.ticks = 0
        self.error = ""  # why the last tick failed, if it did

    async def run(self) -> None:
        """Tick until `stop`. Raises InstanceForgotten, which ends the instance."""
        while not self._stopped:
            if not await self._times.wait():
                continue
            full, running = self._times.begin()
            began = asyncio.get_running_loop().time()
            try:
                tick = await self.run_once(sweep=full, running=running)
            except InstanceForgotten:
                raise
            except HeadgateError as error:
                self.error = str(error)
                log.warning("tick_failed error=%s", error)
                continue
            finally:
                self._times.ended(began)
            if tick.next_due is not None and tick.now is not None:
                # Asking for a locked row without a pause would not help.
                least = _LOCKED_TICKS_APART if tick.due_is_locked and not tick.promoted else TICKS_APART
                self._times.due_in(max(least, (tick.next_due - tick.now).total_seconds()))
            if tick.next_resume is not None and tick.now is not None:
                self._times.due_in(max(TICKS_APART, (tick.next_resume - tick.now).total_seconds()))

    def stop(self) -> None:
        """Tick no more; one that is under way ends first."""
        self._stopped = True
        self._times.wake()

    async def run_once(self, *, sweep: bool = True, running: bool = True) -> Tick:
        """Promote, look for pending topics, read the control rows: one call; and reap.

        `sweep`: reap, and have busy demands look below their watermark. Once a second, however many ticks due jobs
        bring about. `running`: look at running jobs. Not for due jobs: while an old snapshot is held, that reads all
        that began since the oldest one did.
        """
        wanted = self._demands.topics_with_credit() if sweep else []  # one for a due job is about that job
        changes = self._gate.changes
        began = self._times.asked()
        scanner = self._scanner
        whole = scanner.topics.is_due(began, apart=False)
        below = running and scanner.floors.is_due(began, apart=False)
        try:
            try:
                ranges = None if whole else self._from_the_marks(wanted)
                tick = await self._store.tick(wanted, ranges, running=running, below=below)
            finally:  # also if it failed: the next one must not have to walk as far
                if wanted and whole:
                    scanner.topics_scanned(began)
                if below:
                    scanner.floors_scanned(began)
            if self._watchdog is not None:
                self._watchdog.answered()
            self._follow(tick, changes, sweep=sweep, whole=whole)
            if sweep:
                scanner.wake()
            # Only now: a tick that waited for a database that was away has closed the gate. And after the rest,
            # which must not wait for it.
            if sweep and _may_have_expired(tick) and (self._watchdog is None or self._watchdog.is_open):
                topic_nos = await self._store.reap()
                tick.reaped = len(topic_nos)
                self._tallies.lapsed(topic_nos)
        except HeadgateError:
            if self._watchdog is not None:
                self._watchdog.lost()
            raise
        self.ticks += 1
        self.error = ""
        if tick.reaped >= REAP_AT_ONCE:  # a worker with many jobs was lost: the rest must not wait for a second each
            self._times.full_soon()
        elif tick.reaped:  # what they are now, pending or waiting, is for the next one
            self._times.soon()
        return tick

    def _follow(self, tick: Tick, changes: int, *, sweep: bool, whole: bool) -> None:
        """Act on what a tick has found, except for what has expired; `whole`: it looked below the marks, too."""
        if tick.now is not None:
            self._times.learn(tick.now)
        if tick.stepped_back is not None:
            log.warning("clock_stepped_back seconds=%.3f clock=database", tick.stepped_back.total_seconds())
            self._demands.forget_marks()  # new jobs rank below them
            self._demands.wake_all()
        self._wakes.others = tick.others
        if changes == self._gate.changes:
            self._gate.set_paused(tick.paused)
            self._gate.set_quiet(tick.quiet)
            self._gate.set_stops(tick.stops)
        else:  # it may have read what was before: the next one, which comes at once, knows
            self._times.soon()
        for _, topic_no, job_id in tick.promoted:
            self._demands.wake(topic_no, job_id)
        # A job may lie below the watermark without any wake. A busy demand sweeps for it, whether or not it has
        # credit at this moment; an idle one may miss something, and looks from the head if it finds nothing else.
        for demand in self._demands:
            demand.sweep = demand.sweep or (sweep and demand.busy)
        self._demands.pending_seen(tick.pending, whole=whole)
        if tick.limits_open and tick.now is not None:
            at_tick = tick.now
            self._limit_timers.set((topic_no, (at - at_tick).total_seconds()) for topic_no, at in tick.limits_open)
        if tick.unblocks:
            self._on_unblock()
        if tick.bulk:
            self._on_bulk()
        if tick.webhooks:
            self._on_webhook()
        for tenant_no, job_id, epoch in tick.cancels:
            self._gate.cancel_requested(tenant_no, job_id, epoch)
        if tick.promoted:
            self._demands.woken.set()

    def _from_the_marks(self, topic_nos: Iterable[int]) -> KeyRanges:
        """Where a tick looks when whole topics are too much: from the marks on of every demand that wants a topic."""
        ranges = KeyRanges()
        for topic_no in topic_nos:
            if self._demands.names.may_rank_below(topic_no):
                ranges.add(topic_no, LOWEST, HIGHEST)
            else:
                for demand in self._demands.by_topic.get(topic_no, ()):
                    ranges.extend(demand.marks.ranges([topic_no]))
        return ranges


def _may_have_expired(tick: Tick) -> bool:
    """Whether some attempt began so long ago that its lease can be over: without one, a tick is a single call."""
    if tick.oldest_running is None or tick.now is None:
        return False
    # One that began in the future: the clock was set back.
    return abs(tick.now - tick.oldest_running) >= LEASE_MIN
