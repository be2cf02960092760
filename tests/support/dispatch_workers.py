"""Workers without a wire: they read their session as a stream's writer would (D22), and run jobs in slots."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from headgate.dispatch.delivery import ControlFrame, Delivery
from headgate.dispatch.outcome_writes import OutcomeWrite
from headgate.dispatch.session import WorkerSession
from headgate.dispatch.session_ends import SessionEnded
from headgate.domain.dispatching import Settled
from headgate.domain.outcomes import Completed, ErrorInfo, Failed, Outcome
from headgate.domain.states import Receipt, State
from tests.support.dispatch_waits import SOON
from tests.support.epochs import RANGE

if TYPE_CHECKING:
    from tests.support.dispatching import Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One attempt as its worker sees it."""

    id: UUID
    epoch: int
    attempt: int
    topic_no: int
    worker: str


Handler = Callable[[Run], Awaitable[Outcome]]


def completing(result: bytes = b"") -> Handler:
    async def handler(_run: Run) -> Outcome:
        return Completed(result=result)

    return handler


def failing(*, permanent: bool = False) -> Handler:
    async def handler(_run: Run) -> Outcome:
        return Failed(error=ErrorInfo(type="ValueError", message="boom"), permanent=permanent)

    return handler


def slow(seconds: float) -> Handler:
    async def handler(_run: Run) -> Outcome:
        await asyncio.sleep(seconds)
        return Completed()

    return handler


def waiting_for(event: asyncio.Event, outcome: Outcome | None = None) -> Handler:
    async def handler(_run: Run) -> Outcome:
        await event.wait()
        return outcome or Completed()

    return handler


@dataclass(slots=True)
class Tracker:
    """What runs at this moment, over any number of workers, and what ever ran."""

    running: Counter[UUID] = field(default_factory=Counter)
    runs: list[Run] = field(default_factory=list)
    most: int = 0
    overlaps: int = 0  # how often a job ran twice at the same time

    def began(self, run: Run) -> None:
        self.runs.append(run)
        self.running[run.id] += 1
        self.overlaps += self.running[run.id] > 1
        self.most = max(self.most, self.running.total())

    def ended(self, run: Run) -> None:
        self.running[run.id] -= 1

    @property
    def now(self) -> int:
        return self.running.total()

    @property
    def times(self) -> Counter[UUID]:
        return Counter(run.id for run in self.runs)


class Worker:
    """A session, and slots behind it. Without a handler nothing is read: the test reads the session itself."""

    def __init__(
        self,
        instance: Instance,
        session: WorkerSession,
        *,
        topic_nos: Sequence[int],
        lease_ms: int,
        handler: Handler | None,
        tracker: Tracker,
    ) -> None:
        self.instance, self.session, self.tracker = instance, session, tracker
        self.topic_nos, self.lease_ms, self._handler = topic_nos, lease_ms, handler
        self.told: list[ControlFrame] = []
        self.delivered: list[Delivery] = []
        self.receipts: dict[tuple[UUID, int], Settled | None] = {}  # None: applied, as asked
        self._slots: set[asyncio.Task[None]] = set()
        self._reader = asyncio.create_task(self._read(), name=f"reader {session.worker_id}") if handler else None

    def ready(self, count: int) -> None:
        self.instance.demands.grant(self.session, self.topic_nos, self.lease_ms, count)

    async def take(self, *, within: float = SOON.total_seconds()) -> Delivery:
        """The next jobs; other messages are put aside."""
        async with asyncio.timeout(within):
            while isinstance(part := await self.session.next_part(), ControlFrame):
                self.told.append(part)
        assert part is not None, f"the session has ended: {self.session.ended}"
        self.session.written()
        self.delivered.append(part)
        return part

    async def hear(self, *, within: float = SOON.total_seconds()) -> ControlFrame:
        """The next message that is not jobs."""
        async with asyncio.timeout(within):
            while isinstance(part := await self.session.next_part(), Delivery):
                self.delivered.append(part)
        assert part is not None, f"the session has ended: {self.session.ended}"
        self.told.append(part)
        return part

    def settle(self, *outcomes: tuple[UUID, int, Outcome]) -> asyncio.Future[Mapping[int, Settled]]:
        """Report; the answer comes after the commit."""
        answer: asyncio.Future[Mapping[int, Settled]] = asyncio.get_running_loop().create_future()
        self.instance.outcomes.put(
            OutcomeWrite(
                self.session.tenant_no,
                (),
                (),
                (),
                list(outcomes),
                done=lambda told: None if answer.done() else answer.set_result(told),  # type: ignore[arg-type]
                failed=lambda error: None if answer.done() else answer.set_exception(error),
                session=self.session,
            )
        )
        return answer

    async def report(self, job_id: UUID, epoch: int, outcome: Outcome) -> Settled:
        """Report one, and wait for the answer. A small epoch counts the job's claims."""
        if epoch < RANGE:
            (epoch,) = await self.instance.epochs([job_id], epoch)
        answer = await asyncio.wait_for(self.settle((job_id, epoch, outcome)), SOON.total_seconds())
        return answer.get(0) or APPLIED

    def complete(self, delivery: Delivery) -> None:
        """Complete a whole delivery in one frame, without waiting."""
        self.instance.outcomes.put(
            OutcomeWrite(
                self.session.tenant_no,
                delivery.ids,
                delivery.epochs,
                [b""] * len(delivery),
                (),
                done=lambda _: None,
                failed=lambda _: None,
                session=self.session,
            )
        )

    def lose(self, reason: str = "the wire broke") -> None:
        """The connection is gone: what a stream's handler does in its `finally`."""
        self.session.end(SessionEnded(reason))
        self.instance.sessions.close(self.session)
        self.instance.demands.revoke(self.session)

    def disconnect(self) -> None:
        """The same, by the rules: its leases are to end when it does not come back."""
        self.instance.rules.close(self.session, "the wire broke")

    async def close(self) -> None:
        self.lose("the test is over")
        tasks = {*self._slots, *([self._reader] if self._reader else [])}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self) -> None:
        while (part := await self.session.next_part()) is not None:
            if isinstance(part, ControlFrame):
                self.told.append(part)
                continue
            self.delivered.append(part)
            for job_id, epoch, attempt, topic_no in zip(
                part.ids, part.epochs, part.attempts, part.topic_nos, strict=True
            ):
                run = Run(id=job_id, epoch=epoch, attempt=attempt, topic_no=topic_no, worker=self.session.worker_id)
                self.tracker.began(run)
                task = asyncio.create_task(self._run(run), name=f"slot {job_id}")
                self._slots.add(task)
                task.add_done_callback(self._slots.discard)

    async def _run(self, run: Run) -> None:
        assert self._handler is not None
        try:
            outcome = await self._handler(run)
        except Exception as error:  # noqa: BLE001 - as the SDK does
            outcome = Failed(error=ErrorInfo(type=type(error).__name__, message=str(error)))
        finally:
            self.tracker.ended(run)
        # Ready goes out in the frame of the outcome: no one waits for the receipt.
        answer = self.settle((run.id, run.epoch, outcome))
        self.ready(1)
        self.receipts[run.id, run.epoch] = (await answer).get(0)


APPLIED = Settled(receipt=Receipt.APPLIED, state=State.COMPLETED)
