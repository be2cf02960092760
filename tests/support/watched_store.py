"""The store itself, watched: it counts calls by verb, and fails or waits where a test wants it."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from headgate.domain.dispatching import ClaimRequest
from headgate.domain.errors import StoreBusy
from headgate.domain.keyrange import KeyRanges
from headgate.domain.wakes import Wake
from headgate.store.dispatch_store import DispatchStore
from tests.support.dispatch_waits import SOON, settle_down

T = TypeVar("T")


Hook = Callable[[], Awaitable[None]]


def failing_with(*errors: BaseException) -> Hook:
    """Raise these, one per call; then let calls pass."""
    left = deque(errors)

    async def hook() -> None:
        if left:
            raise left.popleft()

    return hook


class Hold:
    """A hook that keeps calls waiting until `release`."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self._free = asyncio.Event()

    async def __call__(self) -> None:
        self.entered.set()
        await self._free.wait()

    def release(self) -> None:
        self._free.set()

    async def reached(self) -> None:
        await asyncio.wait_for(self.entered.wait(), SOON.total_seconds())


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one claim asked for."""

    tenant_no: int
    topic_nos: tuple[int, ...]
    limit: int
    workers: tuple[str, ...]
    runs: tuple[int, ...]
    ranges: KeyRanges
    hints: tuple[UUID, ...]

    @property
    def from_head(self) -> bool:
        return self.ranges == KeyRanges.whole(self.topic_nos)


class WatchedStore(DispatchStore):
    """A real store. `before[verb]` and `after[verb]` run around a verb's call to PostgreSQL."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.calls: Counter[str] = Counter()
        self.asked: list[Asked] = []
        self.got: list[int] = []
        self.tick_ranges: list[KeyRanges | None] = []
        self.tick_running: list[bool] = []  # whether a tick looked at running jobs
        self.renewed_rows = 0
        self.renewals: list[dict[int, int]] = []  # of each call, the number of rows by tenant
        self.timeouts = 0  # calls that gave up waiting for a lock
        self.before: dict[str, Hook] = {}
        self.after: dict[str, Hook] = {}
        self._statements = 0

    async def count_statements(self) -> None:
        """Open all lanes, and count what the driver sends from now on."""

        def sent(record: Any) -> None:
            self._statements += "headgate." in record.query  # not the driver's own look at types, once a session

        for name, lane in self._lanes.items():
            async with self.as_tenant(name, 0) if name in self._tenant_lanes else lane.use() as db:
                db.add_query_logger(sent)

    async def sent(self) -> int:
        """How many statements were sent since then; the driver tells of each a little later."""
        await settle_down()
        return self._statements

    async def _watched(self, verb: str, call: Coroutine[Any, Any, T]) -> T:
        self.calls[verb] += 1
        try:
            if (hook := self.before.get(verb)) is not None:
                await hook()
        except BaseException:
            call.close()
            raise
        try:
            answer = await call
        except StoreBusy as error:
            self.timeouts += error.locked
            raise
        if (hook := self.after.get(verb)) is not None:
            await hook()
        return answer

    async def claim(self, request: ClaimRequest) -> Any:
        assert request.ranges is not None
        self.asked.append(
            Asked(
                tenant_no=request.tenant_no,
                topic_nos=tuple(request.topic_nos),
                limit=request.limit,
                workers=tuple(request.workers),
                runs=tuple(request.runs),
                ranges=request.ranges,
                hints=tuple(request.hints),
            )
        )
        got = await self._watched("claim", super().claim(request))
        assert len(got) <= request.limit, "more was claimed than there is credit for"
        self.got.append(len(got))
        return got

    async def tick(
        self, topic_nos: Sequence[int], ranges: KeyRanges | None = None, *, running: bool = True, below: bool = False
    ) -> Any:
        self.tick_ranges.append(ranges)
        self.tick_running.append(running)
        return await self._watched("tick", super().tick(topic_nos, ranges, running=running, below=below))

    async def scan_topics(self, topic_nos: Sequence[int]) -> list[int]:
        return await self._watched("scan_topics", super().scan_topics(topic_nos))

    async def scan_below_floors(self) -> bool:
        return await self._watched("scan_below_floors", super().scan_below_floors())

    async def reap(self) -> list[int]:
        return await self._watched("reap", super().reap())

    async def settle(self, rows: Any) -> Any:
        return await self._watched("settle", super().settle(rows))

    async def submit(self, rows: Any) -> Any:
        return await self._watched("submit", super().submit(rows))

    async def submit_locked(self, rows: Any) -> Any:
        return await self._watched("submit_locked", super().submit_locked(rows))

    async def submit_and_claim(self, rows: Any, request: ClaimRequest) -> Any:
        answers, got = await self._watched("submit_and_claim", super().submit_and_claim(rows, request))
        assert len(got) <= request.limit, "more was claimed than there is credit for"
        return answers, got

    async def renew(
        self,
        held: Mapping[tuple[int, int], tuple[Sequence[UUID], Sequence[int]]],
        *,
        for_call: bool = False,
        declared: bool = False,
    ) -> Any:
        self.renewed_rows += sum(len(ids) for ids, _ in held.values())
        self.renewals.append({tenant_no: len(ids) for (tenant_no, _), (ids, _) in held.items()})
        return await self._watched("renew", super().renew(held, for_call=for_call, declared=declared))

    async def expire_lost(
        self, tenant_no: int, ids: Sequence[UUID], epochs: Sequence[int], *, lost_ms: int, end: bool
    ) -> Any:
        verb = "expire_lost" if end else "look_for_lost"
        return await self._watched(verb, super().expire_lost(tenant_no, ids, epochs, lost_ms=lost_ms, end=end))

    async def notify(self, wakes: Collection[Wake]) -> None:
        await self._watched("notify", super().notify(wakes))
