"""Demands: what the links of this instance want, summed up by tenant, topics and lease.

Credit is conserved: what links granted is free here, reserved by a claim in flight, or dealt. A claim reserves before
it asks and gives back what it did not deal, whatever happens in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from headgate.dispatch.links import Link

MOST_HINTS: Final = 1_000
"""Jobs that one demand looks for by their ids. A demand without credit may stand for hours: more than this many, and
its next claim looks from the head instead."""


@dataclass(slots=True, eq=False)
class Demand:
    """Links that want the same: they share a claim."""

    tenant_no: int
    topic_nos: tuple[int, ...]
    lease_ms: int
    credit: int = 0
    links: deque[Link] = field(default_factory=deque)  # those with credit; the front is served first
    members: set[Link] = field(default_factory=set)  # all that ever asked and have not ended, with credit or without
    parked: dict[Link, int] = field(default_factory=dict)  # of quiet links: their credit, kept out of the book
    stirred: bool = True  # there may be work: nobody has looked since the last wake
    from_head: bool = True  # the next claim looks from the very head, not from the watermark
    sweep: bool = False  # the next claim also looks at a stretch below the watermark
    hints: dict[UUID, None] = field(default_factory=dict)
    claiming: bool = False

    @property
    def unused(self) -> bool:
        """Nobody wants it any more, and no claim for it is in flight."""
        return not self.members and not self.claiming

    @property
    def busy(self) -> bool:
        """It is being claimed for, or about to be, or it takes nothing now: not waiting for news of work."""
        return self.claiming or self.stirred or not self.credit

    def grant(self, link: Link, count: int) -> None:
        """A link will take `count` more."""
        before = link.credit.get(self, 0)
        self.members.add(link)
        if link in self.parked:
            link.credit.setdefault(self, 0)
            self.parked[link] += count
            return
        link.credit[self] = before + count
        self.credit += count
        if before == 0:
            self.links.append(link)

    def park(self, link: Link) -> None:
        """A link is quiet: its credit counts for nothing until it is not."""
        if link in self.parked:
            return
        self.parked[link] = credit = link.credit.get(self, 0)
        self.credit -= credit
        link.credit[self] = 0
        if link in self.links:
            self.links.remove(link)

    def unpark(self, link: Link) -> None:
        """It takes jobs again, as many as it would have taken all along."""
        if credit := self.parked.pop(link, 0):
            self.grant(link, credit)
            self.stirred = True

    def look_for(self, job_ids: Iterable[UUID]) -> None:
        """These jobs may lie below the watermark: the next claim asks for them by their ids."""
        for job_id in job_ids:
            if len(self.hints) >= MOST_HINTS:
                self.from_head = True
            if self.from_head:  # which finds them without being told
                self.hints.clear()
                return
            self.hints[job_id] = None

    def reserve(self, limit: int) -> list[tuple[Link, int]]:
        """Take up to `limit` credits out of the book, in runs: (link, how many), those who wait longest first.

        Each link gets an equal share of the limit, at least one; what others leave goes round again. A link that has
        ended gets nothing: its stream may take a while to notice, and what is claimed for it would only come back.
        """
        runs: dict[Link, int] = {}
        left = min(limit, self.credit)
        share = max(1, left // max(1, len(self.links)))
        while left:
            link = self.links.popleft()
            have = link.credit[self]
            take = have if link.ended is not None else min(have, share, left)
            self.credit -= take
            link.credit[self] = have - take
            if link.ended is not None:
                left = min(left, self.credit)
                continue
            runs[link] = runs.get(link, 0) + take
            left -= take
            if have > take:
                self.links.append(link)
        return list(runs.items())

    def give_back(self, runs: Sequence[tuple[Link, int]], dealt: int) -> None:
        """Return what a claim did not deal. Who got nothing goes before who got something; who has ended keeps none."""
        unserved: list[Link] = []
        served: list[Link] = []
        for link, count in runs:
            took = min(count, dealt)
            dealt -= took
            if link in self.parked:  # made quiet while the claim was under way
                self.parked[link] += count - took
            elif link.ended is None and self in link.credit:
                link.credit[self] += count - took
                self.credit += count - took
                (served if took else unserved).append(link)
        if unserved or served:
            asked = {link for link, _ in runs}
            self.links = deque(
                link
                for link in (*(one for one in self.links if one not in asked), *unserved, *served)
                if link.credit[self]
            )

    def forget(self, link: Link) -> None:
        """A link has ended: its credit is void."""
        self.members.discard(link)
        self.parked.pop(link, None)
        self.credit -= link.credit.pop(self, 0)
        if link in self.links:
            self.links.remove(link)
