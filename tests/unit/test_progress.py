"""The progress writer, with tenants whose turn is late or whose write fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from uuid import UUID, uuid4

from headgate.dispatch.progress import ROWS_AT_ONCE, ProgressWriter
from headgate.domain.errors import StoreError

SLOW, QUICK, BROKEN = 1, 2, 3


class Progress:
    """Counts jobs by tenant. The slow tenant waits, the broken one is refused."""

    def __init__(self) -> None:
        self.written: Counter[int] = Counter()
        self.others_done, self.go_on = asyncio.Event(), asyncio.Event()

    async def progress(self, tenant_no: int, words: Mapping[object, object]) -> list[UUID]:
        if tenant_no == SLOW:
            await self.go_on.wait()
        if tenant_no == BROKEN:
            raise StoreError("not this one")
        self.written[tenant_no] += len(words)
        if self.written[QUICK] == ROWS_AT_ONCE + 1:
            self.others_done.set()
        return []


async def test_no_tenants_progress_waits_for_another_tenants_turn_or_error() -> None:
    store = Progress()
    writer = ProgressWriter(store)
    for tenant_no in (SLOW, BROKEN, QUICK):
        for _ in range(ROWS_AT_ONCE + 1):
            writer.note(tenant_no, uuid4(), 1, {"done": 1})
    writing = asyncio.create_task(writer.run_once())
    await asyncio.wait_for(store.others_done.wait(), 20)
    assert store.written == {QUICK: ROWS_AT_ONCE + 1}
    store.go_on.set()
    assert await asyncio.wait_for(writing, 60) == 2 * (ROWS_AT_ONCE + 1)
    assert await writer.run_once() == 0
