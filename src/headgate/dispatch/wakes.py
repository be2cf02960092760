"""Wakes: where jobs may be claimable, said here, by another instance, or by the transaction of an application.

What is committed here wakes the demands of this instance at once. The other instances get a NOTIFY: coalesced,
never in the transaction of a submit, and only while there are others. `headgate.submit` in a transaction of an
application sends its own (ADR 33). A notification that is lost costs the time to the next tick.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from headgate.dispatch.demands import Demands
from headgate.dispatch.periodic import wait_at_most
from headgate.dispatch.ports import WakeStore
from headgate.dispatch.tick_times import TickTimes
from headgate.domain.errors import HeadgateError
from headgate.domain.wakes import ControlChanged, JobReturned, JobsDue, TopicReady, TopicSubmitted, Wake

log = logging.getLogger("headgate.dispatch")
APART_SECONDS: Final = 0.02
"""Between two notifications of one instance."""


class Wakes:
    """Wakes demands here, and announces to the other instances."""

    def __init__(
        self, store: WakeStore, demands: Demands, times: TickTimes, *, apart_seconds: float = APART_SECONDS
    ) -> None:
        self._store, self._demands, self._times = store, demands, times
        self.apart_seconds = apart_seconds
        self._unannounced: set[int] = set()  # topics that are ready
        self._news = asyncio.Event()
        self._stopped = asyncio.Event()
        self.others = 0  # other instances that live, by the last tick

    # ------------------------------------------------------------------ said here

    def jobs_submitted(self, topic_nos: Iterable[int], mean_bytes: float, *, claimed: bool = False) -> None:
        """Jobs were committed here; `claimed`: their own call has claimed for this instance already."""
        for topic_no in topic_nos:
            if not claimed:
                self._demands.wake(topic_no)
            if mean_bytes:
                self._demands.expect(topic_no, mean_bytes)
            self._unannounced.add(topic_no)
        self._news.set()

    def topics_ready(self, topic_nos: Iterable[int]) -> None:
        """Jobs of these topics may be claimable: a schedule or a limit has let them in."""
        for topic_no in topic_nos:
            self._demands.wake(topic_no)
            self._unannounced.add(topic_no)
        self._news.set()

    def jobs_returned(self, jobs: Iterable[tuple[int, UUID]]) -> None:
        """Jobs (topic, id) are claimable at ranks that may lie below the watermark: look for them there."""
        for topic_no, job_id in jobs:
            self._demands.wake(topic_no, job_id)
            self._unannounced.add(topic_no)
        self._news.set()

    async def announce(self, wakes: Iterable[Wake]) -> None:
        """Tell the other instances now. An error is only logged: their tick finds it."""
        events = set(wakes)
        if events and self.others:
            try:
                await self._store.notify(events)
            except HeadgateError as error:
                log.debug("notify_failed error=%s", error)

    async def control_changed(self) -> None:
        """Some row that every tick looks at has changed: this instance and the others look at it now."""
        self._times.soon()
        await self.announce([ControlChanged()])

    async def run_once(self) -> bool:
        """Announce the topics that are ready; says whether there are other instances."""
        topics, self._unannounced = self._unannounced, set()
        await self.announce(map(TopicReady, topics))
        return bool(topics and self.others)

    async def run(self) -> None:
        """Announce until `stop`."""
        while not self._stopped.is_set():
            await self._news.wait()
            self._news.clear()
            if await self.run_once():
                await wait_at_most(self._stopped, self.apart_seconds)

    def stop(self) -> None:
        """Announce no more: the ticks of the others find what is left."""
        self._stopped.set()
        self._news.set()

    # ------------------------------------------------------------------ said by others

    def follow(self, wakes: Iterable[Wake]) -> None:
        """Look where another instance, or an application, says that there is something new."""
        for wake in wakes:
            match wake:
                case ControlChanged():
                    self._times.soon()
                case JobsDue():
                    self._times.on_hint()
                case JobReturned(topic_no):
                    for demand in self._demands.by_topic.get(topic_no, ()):
                        demand.from_head = True
                    self._follow_topic(topic_no)
                case TopicReady(topic_no) | TopicSubmitted(topic_no):
                    self._follow_topic(topic_no)

    def _follow_topic(self, topic_no: int) -> None:
        self._demands.wake(topic_no)
        if self._demands.await_names and not self._demands.names.knows(topic_no):
            self._times.on_hint()  # one that is new here may be waited for by its name
