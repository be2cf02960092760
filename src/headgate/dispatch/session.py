"""A worker session: one connected worker, what it holds, and what is on its way to it.

A session owns its credit (how many more jobs it will take, per demand) and a dict of what it holds, by id. A job has
one entry: of two epochs the newer counts. Jobs that are queued for it but were never written go back at once when it
ends. What was written stays leased: the worker may come back, here or elsewhere, and declare it.

What a session holds is what it was given, or what it declared when it connected and the database confirmed. Whatever
else its worker reports is not kept here, so that no worker can make a session grow; one that reports mostly such jobs
is ended.

*Written* means that the write of its frame has completed. One that was cut short counts as never written: the peer
cannot have read a frame of which the rest is missing. Should its last bytes have left in the same moment in which the
session ended, the epoch of the next delivery makes the outcome of this one stale.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count as counting
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from headgate.dispatch.delivery import ControlFrame, Delivery, Wanted
from headgate.dispatch.session_ends import SessionOverflow, UnknownJobs
from headgate.dispatch.writer import Account
from headgate.domain.errors import HeadgateError
from headgate.domain.identity import Identity
from headgate.domain.tallies import NO_MARK, Mark
from headgate.domain.workers import WorkerStop, stored_worker

if TYPE_CHECKING:
    from headgate.dispatch.demand import Demand

MAX_QUEUED_PARTS = 256
"""Frames that may wait to be written to one session before no more jobs are claimed for it."""
MAX_CONTROL_WEIGHT = 4 * MAX_QUEUED_PARTS
"""What all control frames that wait may weigh: a peer that reads nothing is closed here. Credit bounds the jobs."""
FRAME_BYTES = 1_000_000
"""What one frame of jobs holds at most, or a single job: gRPC clients take 4 MiB by default."""
SESSION_BYTES = 4 * 1024 * 1024
"""Payloads that wait to be written to one session. Past that nothing more is claimed for it until its peer has read:
credit bounds the jobs, and a thousand jobs may be a gigabyte."""
UNKNOWN_MOST: Final = 1_000
"""Jobs that a worker may report although it was never given them; then they must be fewer than those it was given."""
LONG_LIST, LONG_LIST_SECONDS = 2_000, 0.9
"""A longer list of a beat is read only so often: 100,000 ids take a tenth of a second of the event loop."""
EXCUSED_SECONDS: Final = 10.0
"""For this time, and up to twice that, a worker may list jobs that it no longer holds: their receipts may be on their
way to it. They are counted, not kept: that would be every job of the last seconds."""
RECEIPTS_SECONDS, RECEIPTS_WAITING = 1.0, 8
"""How long receipts may wait for a frame of jobs to go with, and how many of them. A frame costs each side as much as
ten or twenty jobs, so a worker that has jobs coming gets both in one (ADR 24)."""


@dataclass(slots=True, eq=False)
class WorkerSession:
    """One connected worker."""

    identity: Identity
    tenant_no: int
    worker_id: str
    now: Callable[[], float]
    default_lease_ms: int
    incarnation: int = 0  # of the worker's process; 0: it has not said
    client: str = ""  # what it calls its program
    clock_us: int = 0  # what its own clock showed when it opened the session; 0: it has not said
    opened_at: float = field(init=False)
    connected_before: float = 0.0  # how long before that its process was first connected, in seconds
    assigned_at: float | None = None  # when it was last given jobs
    claims_as: str = field(init=False)  # the worker on the rows of its jobs
    # Jobs this session holds: id → (epoch, lease_ms, when its lease needs renewing (monotonic), how it was handed over)
    held: dict[UUID, tuple[int, int, float, Mark]] = field(default_factory=dict)
    credit: dict[Demand, int] = field(default_factory=dict)
    quiet: bool = False  # by an administrator's verb: credit is kept aside, not given
    takes_stop: bool = False  # it can be asked to stop: it has frames for it
    stop: WorkerStop | None = None  # it was asked to stop
    kept: dict[Wanted, int] = field(default_factory=dict)  # credit kept aside
    number: int = field(default_factory=counting().__next__)  # in the order in which sessions begin
    places: frozenset[int] = frozenset()  # topics with a maximum of consumers of which it receives jobs
    standby: tuple[str, ...] = ()  # such topics of which it waits for a place
    ended: HeadgateError | None = None
    last_seen: float = 0.0
    renewed_at: float = 0.0  # when the last renewal of some of its leases was answered
    topics: Sequence[str] = ()  # those that it last asked for
    return_credit: Callable[[int], None] | None = None  # of a plain stream, whose credit comes back with outcomes
    on_capacity: Callable[[WorkerSession], None] | None = None  # called when it was passed over as full, and is not
    starved: bool = False  # it was passed over as full
    single_call: bool = False  # what the first claim brings it is its answer
    awaits_look: bool = False  # a call that ends when a claim has looked for it and brought it nothing
    _looked: bool = False
    sent_on: bool = False  # it was asked to connect again, to another process of this port
    queued_bytes: int = 0  # of payloads that wait to be written
    _dealt: int = 0  # deliveries so far
    _writing: Delivery | None = None  # taken by the writer, and not known to be written
    _reports: dict[int, Iterable[UUID]] = field(default_factory=dict)  # outcomes being written, by a number of ours
    _reported: int = 0
    finishing: bool = False  # the worker sends nothing more
    withdrawn: bool = False  # it wants no more jobs, and has not asked again
    accounts: dict[object, Account[Any]] = field(default_factory=dict)  # by writer: what it has waiting there
    _known: int = 0  # jobs reported that it was given, and those that it was not: halved periodically
    _unknown: int = 0
    _released: int = 0  # jobs that it holds no more, since a moment; and before, for at least as long
    _released_before: int = 0
    _released_since: float = 0.0
    _excused_once: int = 0  # jobs that it declared and that are not its own: it may list them in one more beat
    greeted: bool = False  # what it declared in hello is taken over
    locked: set[UUID] = field(default_factory=set)  # declared jobs that are not: others have locked them
    declaring: int = 0  # jobs that it has declared in hello and that are being looked up: counted like held ones
    listed_at: float = -math.inf  # when its last long list was looked at
    _parts: deque[Delivery | ControlFrame] = field(default_factory=deque)
    _control_weight: int = 0  # the weight of all control frames among them
    _receipts: deque[ControlFrame] = field(default_factory=deque)  # those that wait for jobs to go with
    _receipts_timer: asyncio.TimerHandle | None = None
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.claims_as = stored_worker(self.worker_id, self.incarnation, self.identity.subject)
        self.opened_at = self.now()

    def mark_seen(self) -> None:
        """Something arrived from the worker."""
        self.last_seen = self.now()

    @property
    def longest_lease(self) -> float:
        """Seconds of silence after which the session counts as dead."""
        longest = max((demand.lease_ms for demand in self.credit), default=self.default_lease_ms)
        return max(longest, self.default_lease_ms) / 1000

    @property
    def is_silent(self) -> bool:
        """Whether two of its beats are missing: they come every third of the lease."""
        return self.now() - self.last_seen > self.longest_lease * 2 / 3

    def deliver(self, delivery: Delivery) -> bool:
        """Queue jobs; False when the session has ended, and the jobs must go back."""
        if self.ended is not None:
            return False
        now, lease_ms, topic_nos = self.now(), delivery.lease_ms, delivery.topic_nos
        renew_at = now + lease_ms / 2000
        self.assigned_at = now
        self._dealt = seq = delivery.seq = self._dealt + 1
        if topic_nos.count(topic_nos[0]) == len(topic_nos):
            mark = (seq, topic_nos[0], now)
            entry_of = [(epoch, lease_ms, renew_at, mark) for epoch in delivery.epochs]
        else:
            marks = {no: (seq, no, now) for no in topic_nos}
            entry_of = [
                (epoch, lease_ms, renew_at, marks[no]) for epoch, no in zip(delivery.epochs, topic_nos, strict=True)
            ]
        self.held.update(zip(delivery.ids, entry_of, strict=True))
        self._parts.append(delivery)
        self.queued_bytes += delivery.payload_bytes
        self._ready.set()
        return True

    def send_control(self, control: ControlFrame) -> None:
        """Queue anything else. A session that has ended gets nothing."""
        if self._weigh(control):
            if self._receipts:
                self.send_receipts()  # in the order in which they were said
            self._parts.append(control)
            self._ready.set()

    def answer(self, receipts: ControlFrame) -> None:
        """Queue receipts. They go with the next jobs if some are about to come, and alone if none have come soon."""
        # Whether it has asked for jobs, and the last claim for them left some.
        if self.finishing or not any(
            demand.saturated and (count or demand.claiming) for demand, count in self.credit.items()
        ):
            self.send_control(receipts)
        elif self._weigh(receipts):
            self._receipts.append(receipts)
            if len(self._receipts) > RECEIPTS_WAITING:  # its outcomes come in more frames than its jobs
                self.send_receipts()
            elif self._receipts_timer is None:
                self._receipts_timer = asyncio.get_running_loop().call_later(RECEIPTS_SECONDS, self.send_receipts)

    def take_receipts(self) -> ControlFrame | None:
        """Receipts to go with the jobs that `next_part` gave just now, if any wait for that."""
        if not self._receipts:
            return None
        receipts = self._receipts.popleft()
        self._control_weight -= receipts.weight
        if not self._receipts and self._receipts_timer is not None:
            self._receipts_timer.cancel()
            self._receipts_timer = None
        return receipts

    def send_receipts(self) -> None:
        """Receipts that wait for jobs go alone: none will come soon, or another frame is to follow them."""
        if self._receipts_timer is not None:
            self._receipts_timer.cancel()
            self._receipts_timer = None
        if self._receipts:
            self._parts.extend(self._receipts)
            self._receipts.clear()
            self._ready.set()

    def _weigh(self, control: ControlFrame) -> bool:
        """Count what is to be queued; False when the session has ended, or ends here because its peer does not read."""
        if self.ended is not None:
            return False
        self._control_weight += control.weight
        if self._control_weight > MAX_CONTROL_WEIGHT:
            self.end(SessionOverflow(f"worker {self.worker_id} does not read: {len(self._parts)} frames wait for it"))
            return False
        return True

    def holds(self, job_id: UUID, epoch: int) -> bool:
        """Whether this very attempt is here."""
        entry = self.held.get(job_id)
        return entry is not None and entry[0] == epoch

    def settled(self, ids: Iterable[UUID], epochs: Iterable[int] | None = None) -> list[Mark]:
        """These need no more renewing: their outcome is decided. Returns how they were handed over.

        With epochs, a job that is held again is kept: a late report of an earlier attempt must not end its renewals.
        Then there is one mark for each, NO_MARK where the attempt was not held.
        """
        held = self.held
        before = len(held)
        marks: list[Mark] = []
        if epochs is None:
            for job_id in ids:
                held.pop(job_id, None)
        else:
            for job_id, epoch in zip(ids, epochs, strict=True):
                entry = held.pop(job_id, None)
                if entry is None:
                    marks.append(NO_MARK)
                elif entry[0] == epoch:
                    marks.append(entry[3])
                else:
                    held[job_id] = entry
                    marks.append(NO_MARK)
        self._released += before - len(held)
        return marks

    def hold(self, job_id: UUID, epoch: int, lease_ms: int, renew_at: float) -> None:
        """Keep the lease of a job that was not delivered here, or longer; never of an older epoch than the one held."""
        entry = self.held.get(job_id)
        if entry is None or entry[0] <= epoch:
            self.held[job_id] = (epoch, lease_ms, renew_at, entry[3] if entry is not None else NO_MARK)

    def extend(self, job_id: UUID, epoch: int, lease_ms: int, now: float) -> None:
        """Give it a lease of another length, if this very attempt is here.

        It is due at once, and in its turn by when the lease it has now expires, not by the one it is to have.
        """
        entry = self.held.get(job_id)
        if entry is not None and entry[0] == epoch:
            _, old_ms, renew_at, mark = entry
            expires = renew_at + old_ms / 2000
            self.held[job_id] = (epoch, lease_ms, min(now, expires - lease_ms / 2000), mark)

    def renew_later(self, job_id: UUID, epoch: int, lease_ms: int, renew_at: float) -> None:
        """Renew it next at this time; unless it was delivered again, or given a longer lease, meanwhile."""
        entry = self.held.get(job_id)
        if entry is not None and entry[:2] == (epoch, lease_ms):
            self.held[job_id] = (epoch, lease_ms, renew_at, entry[3])

    def excuse_once(self, count: int) -> None:
        """Allow `count` jobs that the worker declared and that are not its own in its next beat."""
        self._excused_once += count

    def excused(self) -> int:
        """How many jobs a beat may list that it does not hold: as many as it was released of lately.

        Those that it declared count for one beat only: it may have made them up.
        """
        now = self.now()
        once, self._excused_once = self._excused_once, 0
        if now - self._released_since >= EXCUSED_SECONDS:
            self._released_before, self._released, self._released_since = self._released, 0, now
        return self._released_before + self._released + once

    def may_list(self, count: int) -> bool:
        """Whether a list of `count` jobs is read now. Long ones are read once a second: workers beat no more often."""
        if count <= LONG_LIST:
            return True
        now = self.now()
        if now - self.listed_at < LONG_LIST_SECONDS:
            return False
        self.listed_at = now
        return True

    def reported_jobs(self, *, given: int = 0, unknown: int = 0) -> None:
        """The worker has reported jobs that it was given, and some that it was not. If these are the most, it ends."""
        self._known += given
        self._unknown += unknown
        if self._unknown > max(UNKNOWN_MOST, self._known):
            self.end(
                UnknownJobs(
                    f"worker {self.worker_id} reported {self._unknown} jobs that it was not given on this connection, "
                    f"and {self._known} that it was; connect again, and declare in hello what it still holds"
                )
            )
        if self._known + self._unknown > 20 * UNKNOWN_MOST:
            self._known //= 2
            self._unknown //= 2

    def keep_only(self, listed: Container[tuple[UUID, int]], *, seen: int) -> None:
        """Stop renewing what the worker has received and no longer lists.

        `seen` is the number of the last delivery it has had when it listed them: what is on its way to it, or queued,
        has a higher one. Nor is a job given up whose outcome is being written: it is in `_reports` from the moment in
        which its frame was read, and frames are read in order.
        """
        reporting = self._reported_ids()
        self.settled(
            [
                job_id
                for job_id, (epoch, _, _, mark) in self.held.items()
                if mark[0] <= seen and (job_id, epoch) not in listed and job_id not in reporting
            ]
        )

    def undecided(self) -> list[tuple[UUID, int]]:
        """What it holds and has not reported: jobs and epochs, without those whose outcomes are being written."""
        reporting = self._reported_ids()
        return [(job_id, entry[0]) for job_id, entry in self.held.items() if job_id not in reporting]

    def _reported_ids(self) -> set[UUID]:
        return {job_id for ids in self._reports.values() for job_id in ids}

    def reporting(self, ids: Iterable[UUID]) -> int:
        """The outcomes of these are on their way to the database; gives the number to call `reported` with."""
        self._reported += 1
        self._reports[self._reported] = ids
        return self._reported

    def reported(self, number: int) -> None:
        """They are written, or never will be, and the worker's answer is queued."""
        self._reports.pop(number, None)
        if self.finishing:
            self._ready.set()

    def finish(self) -> None:
        """The worker says nothing more. It still gets the receipts of what it said; then the writer ends."""
        self.finishing = True
        self.send_receipts()
        self._ready.set()

    async def next_part(self) -> Delivery | ControlFrame | None:
        """What to write next; None when the session has ended, or is finished. What it gave before is written."""
        self._writing = None
        while not self._parts:
            if self.ended is not None or (self.finishing and not self._reports):
                return None
            self._ready.clear()
            await self._ready.wait()
        part = self._parts[0]
        if not isinstance(part, Delivery):
            self._control_weight -= part.weight
            self._parts.popleft()
            if self.starved:
                self._look_for_capacity()
            return part
        if self.ended is not None:
            return None
        first, rest = part.split(FRAME_BYTES)
        if rest is None:
            self._parts.popleft()
        else:
            self._parts[0] = rest
        self._writing = first
        self.queued_bytes -= first.payload_bytes
        if self.starved:
            self._look_for_capacity()
        return first

    def _look_for_capacity(self) -> None:
        """Ask for the jobs that it was not given while too much waited for it."""
        if not self.is_full:
            self.starved = False
            if self.on_capacity is not None:
                self.on_capacity(self)

    async def queued(self, *, or_looked: bool = False) -> bool:
        """Wait until jobs are queued, or the session has ended; says whether there are jobs.

        `or_looked`: or until a claim for it has brought it nothing.
        """
        self.awaits_look, self._looked = or_looked, False
        while not self._parts and self.ended is None and not self._looked:
            self._ready.clear()
            await self._ready.wait()
        return bool(self._parts) and self.ended is None

    def looked(self) -> None:
        """A claim for it has brought it nothing, and it waits to know."""
        self._looked = True
        self._ready.set()

    def take_queued(self, most_bytes: int) -> list[Delivery]:
        """The jobs that are queued, as far as they fit, at least one. They count as written: the caller has them."""
        taken: list[Delivery] = []
        left = most_bytes
        while self._parts and left > 0:
            part = self._parts.popleft()
            if isinstance(part, Delivery):
                first, rest = part.split(left)
                taken.append(first)
                left -= first.payload_bytes
                if rest is not None:
                    self._parts.appendleft(rest)
                    break
        return taken

    def written(self) -> None:
        """The jobs that `next_part` gave last are on the wire: only their worker, or their lease, gives them back."""
        self._writing = None

    def unwritten(self) -> frozenset[UUID]:
        """The jobs that wait to be written to it, or are being written."""
        deliveries = [part for part in (self._writing, *self._parts) if isinstance(part, Delivery)]
        return frozenset(job_id for delivery in deliveries for job_id in delivery.ids)

    @property
    def is_full(self) -> bool:
        """Whether its peer must read before more is claimed for it, or it is a call that has its answer."""
        # By frames, too: a worker that is busy for a moment must not lose its session to a burst of small ones.
        return (
            self.queued_bytes >= SESSION_BYTES
            or len(self._parts) >= MAX_QUEUED_PARTS
            or (self.single_call and self._dealt > 0)
        )

    async def over(self) -> None:
        """Return when the session has ended. Its writer may not notice: it hangs while the peer reads nothing."""
        await self._over.wait()

    def end(self, reason: HeadgateError) -> None:
        """End the session; its writer and reader notice. The first reason counts."""
        if self.ended is None:
            self.ended = reason
        self.send_receipts()
        self._ready.set()
        self._over.set()

    def take_unsent(self) -> list[Delivery]:
        """What was never written, once, to be abandoned. Control frames stay: the peer may still read them.

        A frame that is being written is among it only when the session has ended: else it will be written.
        """
        unsent = [part for part in self._parts if isinstance(part, Delivery)]
        self._parts = deque(part for part in self._parts if not isinstance(part, Delivery))
        self.queued_bytes, self.starved = 0, False
        if self.ended is not None and self._writing is not None:
            unsent.insert(0, self._writing)
            self._writing = None
        for delivery in unsent:
            self.settled(delivery.ids, delivery.epochs)
        return unsent
