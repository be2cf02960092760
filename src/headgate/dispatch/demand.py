"""Demands: what the sessions of this instance want, summed up by tenant, topics and lease.

A topic without any submit so far has no number. It is kept by name, and nothing is written for it; when it appears,
the credit goes to a demand with its number.

Credit is conserved: what sessions granted is free here, reserved by a claim in flight, or dealt. A claim reserves
before it asks and gives back what it did not deal, whatever happens in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from headgate.dispatch.delivery import Wanted
from headgate.dispatch.session import WorkerSession
from headgate.dispatch.watermark import Watermark

MOST_HINTS: Final = 1_000
"""Jobs that one demand looks for by their ids. A demand without credit may stand for hours: more than this many, and
its next claim looks from the head instead."""
CLAIM_BYTES: Final = 4 * 1024 * 1024
"""What one claim should bring, by what lately came: 500 jobs of a megabyte each must not be one answer."""
UNKNOWN_BYTES: Final = 128 * 1024
"""What a job weighs as long as nothing is known of its demand: 32 in its first claim."""


@dataclass(slots=True, eq=False)
class Demand:
    """Sessions that want the same: they share a claim."""

    tenant_no: int
    topic_nos: tuple[int, ...]
    lease_ms: int
    unknown: tuple[str, ...] = ()  # topics that do not exist yet
    credit: int = 0
    sessions: deque[WorkerSession] = field(default_factory=deque)  # those with credit; the front is served first
    members: set[WorkerSession] = field(default_factory=set)  # all that ever asked and have not ended
    wake_pending: bool = True  # there may be work: no claim has looked since the last wake
    from_head: bool = True  # the next claim looks from the head, not from the watermark
    missed: bool = False  # a tick has seen jobs while it waited: if the next claim finds none, it looks from the head
    sweep: bool = False  # the next claim also looks at a stretch below the watermark
    hints: dict[UUID, None] = field(default_factory=dict)
    marks: Watermark = field(default_factory=Watermark)
    claiming: bool = False
    moves: bool = False  # a topic of `unknown` has appeared during its claim: its sessions move when that is over
    delayed: bool = False  # there may be work, but all that have credit are full
    saturated: bool = False  # the last claim brought all it asked for
    job_bytes: float = UNKNOWN_BYTES  # what a job lately weighed: rises at once, falls slowly
    # Sessions that withdrew while a claim in flight may have reserved credit of theirs; True: it is granted again.
    revoked: dict[WorkerSession, bool] = field(default_factory=dict)
    wanted: Wanted = field(init=False)  # what its sessions ask for

    def __post_init__(self) -> None:
        self.wanted = self.topic_nos, self.lease_ms, self.unknown

    def most(self, limit: int) -> int:
        """How many jobs to ask for at once, at most `limit`: about as many as make CLAIM_BYTES."""
        return max(1, min(limit, int(CLAIM_BYTES / max(1.0, self.job_bytes))))

    def expect(self, mean_bytes: float) -> None:
        """Jobs of this weight were seen: claimed just now, or submitted here."""
        self.job_bytes = max(mean_bytes, (self.job_bytes + mean_bytes) / 2)

    @property
    def wants_claim(self) -> bool:
        """It has credit, there may be work, and no claim for it is in flight."""
        return bool(self.credit and self.topic_nos) and self.wake_pending and not self.claiming

    @property
    def busy(self) -> bool:
        """It is being claimed for, or about to be, or it takes nothing now: not waiting for news of work."""
        return self.claiming or self.wake_pending or not self.credit

    def grant(self, session: WorkerSession, count: int) -> None:
        """A session will take `count` more."""
        before = session.credit.get(self, 0)
        session.credit[self] = before + count
        self.credit += count
        self.members.add(session)
        self.wake_pending, self.delayed = self.wake_pending or self.delayed, False
        if before == 0 and count:
            self.sessions.append(session)

    def join(self, session: WorkerSession) -> None:
        """Keep the demand and its watermark for a session that asks for nothing at this moment."""
        self.members.add(session)
        session.credit.setdefault(self, 0)

    def look_for(self, job_ids: Iterable[UUID]) -> None:
        """These jobs may lie below the watermark: the next claim asks for them by their ids."""
        for job_id in job_ids:
            if len(self.hints) >= MOST_HINTS:
                self.from_head = True
            if self.from_head:  # which finds them without hints
                self.hints.clear()
                return
            self.hints[job_id] = None

    def reserve(self, limit: int) -> list[tuple[WorkerSession, int]]:
        """Take up to `limit` credits out of the book, in runs: (session, how many), those that wait longest first.

        Each session gets an equal share of the limit, at least one; shares that are not used are divided again. While
        `saturated`, each gets all that it asked for, and the next claim serves the sessions after it: a frame costs as
        much as twenty jobs in it, so many sessions must not mean small frames. A session that has ended gets nothing:
        its stream may notice later, and jobs claimed for it would be returned. A full session gets nothing either: it
        reports when it takes jobs again.
        """
        runs: dict[WorkerSession, int] = {}
        full: list[WorkerSession] = []
        left, blocked = min(limit, self.credit), 0
        share = left if self.saturated else max(1, left // max(1, len(self.sessions)))
        while left:
            session = self.sessions.popleft()
            have = session.credit[self]
            if session.is_full and session.ended is None:
                session.starved = True
                full.append(session)
                blocked += have
                left = min(left, self.credit - blocked)
                continue
            if self.saturated and runs and left < have // 2 and session.ended is None:
                self.sessions.appendleft(session)  # a whole frame by the next claim, not the rest of this one
                break
            take = have if session.ended is not None else min(have, share, left)
            self.credit -= take
            session.credit[self] = have - take
            if session.ended is not None:
                left = min(left, self.credit - blocked)
                continue
            runs[session] = runs.get(session, 0) + take
            left -= take
            if have > take:
                self.sessions.append(session)
        self.sessions.extend(full)
        return list(runs.items())

    def give_back(self, runs: Sequence[tuple[WorkerSession, int]], dealt: int) -> None:
        """Return what a claim did not deal. Sessions that got nothing go first; those that have ended keep none."""
        unserved: list[WorkerSession] = []
        served: list[WorkerSession] = []
        for session, count in runs:
            took = min(count, dealt)
            dealt -= took
            if session.ended is None and self in session.credit and session not in self.revoked:
                session.credit[self] += count - took
                self.credit += count - took
                (served if took else unserved).append(session)
                if not took and session.awaits_look:
                    session.looked()
        if unserved or served:
            # Not all of `runs`: one that was revoked meanwhile may have asked again, and has its place by that.
            moved = {*unserved, *served}
            self.sessions = deque(
                session
                for session in (*(one for one in self.sessions if one not in moved), *unserved, *served)
                if session.credit[self]
            )

    def passed_over(self) -> None:
        """Nothing can be claimed for it now: calls that only want a look are over."""
        for session in self.sessions:
            if session.awaits_look:
                session.looked()

    def forget(self, session: WorkerSession, *, keep: bool = False) -> int:
        """A session has ended, or takes no more: its credit is revoked. Returns how much that was.

        What a claim in flight has reserved for it is revoked too, whatever it asks for meanwhile; with `keep`, the
        claim grants it again when it is over.
        """
        self.members.discard(session)
        revoked = session.credit.pop(self, 0)
        self.credit -= revoked
        if session in self.sessions:
            self.sessions.remove(session)
        if self.claiming:
            self.revoked[session] = keep
        return revoked
