"""Where a claim need not look: the soft watermark.

A claimed job leaves a dead entry at the head of the claim index. Vacuum removes it, unless another session holds an old
snapshot; then every claim that starts at the head walks over all of them. So claims start where the last one ended: one
mark per (topic, rank class), because each class has its own dead prefix, for a bounded number of classes.

Jobs come below the marks: a retry or an abandoned job keeps its old rank, a slow transaction commits late, a claim that
had locked jobs fails. Gaps are the key ranges below a mark where that may have happened; every claim looks at them too,
until one has looked at all of a gap. They come from
- the arrivals that each claim reads in the database (ADR 0021): what has become claimable since the claim before it;
- what a claim passed over because others had it locked;
- the sweep: stretch after stretch of everything below the marks, paced by the caller so that a round takes a second or
  two. It is a second line of defence: it finds what was made claimable manually, without an arrival.

One watermark belongs to one demand, which has one claim at a time: what a claim has seen is true of the next one.
Times here are ranks: microseconds of the database's clock. Nothing in this module reads a clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from headgate.domain.arrivals import ClaimNews, RankRange, Seen
from headgate.domain.keyrange import HIGHEST, LOWEST, KeyRanges

LOWEST_RANK: Final = LOWEST[1]
MAX_CLASSES: Final = 8
"""Marks kept per topic. Every mark is one more index probe per claim and topic; more priorities than this in use at
once share the stretch of the class before them, which is right, only slower under a held snapshot."""
MAX_GAPS: Final = 64
"""Gaps kept per mark, each of them an index probe. Of more than this, those closest to each other become one."""


@dataclass(slots=True)
class _Mark:
    rank: int  # nothing below is known to be pending, except in the gaps
    floor: int  # the lowest rank ever marked: dead entries lie from here to the mark
    swept: int  # the sweep of this round has looked at everything below this
    used: int  # when it last moved, in claims
    gaps: list[tuple[int, int]] = field(default_factory=list)  # [from, to), ascending, apart from each other


class Watermark:
    """The marks and gaps of one demand."""

    def __init__(self, *, max_classes: int = MAX_CLASSES) -> None:
        self._marks: dict[int, dict[int, _Mark]] = {}
        self._max_classes = max_classes
        self._claims = 0
        self.seen: Seen | None = None  # what the last claim saw; None: the next one must look from the head

    def ranges(self, topic_nos: Iterable[int], *, sweep_us: int = 0) -> KeyRanges:
        """Where to claim from now. With `sweep_us`, also the next stretch of that many µs of rank below each mark."""
        found = KeyRanges()
        for topic_no in topic_nos:
            low = LOWEST
            marks = self._marks.get(topic_no, {})
            for rank_class in sorted(marks):
                mark = marks[rank_class]
                # Up to this class: from the mark of the class before, over the part in which no class is known.
                found.add(topic_no, low, (rank_class, LOWEST_RANK))
                if sweep_us:
                    self._add_gaps(mark, [self._next_stretch(mark, sweep_us)])
                for start, stop in mark.gaps:
                    if start < mark.rank:  # above it, claims look anyway
                        found.add(topic_no, (rank_class, start), (rank_class, min(stop, mark.rank)))
                low = (rank_class, mark.rank)
            found.add(topic_no, low, HIGHEST)
        return found

    def claimed(self, topic_nos: Sequence[int], rank_classes: Sequence[int], ranks_at: Sequence[int]) -> None:
        """Raise the marks to the last job of each class in a claim that came in order.

        Everything that stood before those jobs and could be seen was claimed with them or by another claim.
        """
        self._claims += 1
        for topic_no, rank_class, rank_at in zip(topic_nos, rank_classes, ranks_at, strict=True):
            marks = self._marks.setdefault(topic_no, {})
            mark = marks.get(rank_class)
            if mark is None:
                marks[rank_class] = _Mark(rank=rank_at, floor=rank_at, swept=rank_at, used=self._claims)
                if len(marks) > self._max_classes:
                    # The one idle for longest goes: its dead entries have had the most time to be vacuumed.
                    del marks[min(marks, key=lambda one: marks[one].used)]
            else:
                mark.used = self._claims
                mark.rank = max(mark.rank, rank_at)
                mark.floor = min(mark.floor, rank_at)

    def learn(
        self,
        asked: Collection[int],
        topic_nos: Sequence[int],
        rank_classes: Sequence[int],
        ranks_at: Sequence[int],
        *,
        full: bool,
        from_head: bool,
        news: ClaimNews | None,
    ) -> None:
        """A claim for the topics `asked` brought these jobs, in order; `full`: as many as it asked for."""
        if news is None:  # nothing was looked at, or nothing was there when a submitted job was handed over at once
            self.claimed(topic_nos, rank_classes, ranks_at)
            return
        passed_over = from_head and not full and bool(news.limited or news.ended is not None)
        if self.seen is None or news.restart or not passed_over:
            self.seen = news.seen
        # Else it looked from the head without reading arrivals, and a limit or the end of its rounds kept it from some
        # of the jobs below the marks: the next claim reads where they arrived.
        if news.restart or (from_head and full):
            # What lies behind the last job was not looked at, also below the old marks.
            self.forget(asked)
        else:
            self.missed(news.arrived)
        last = (rank_classes[-1], ranks_at[-1]) if full else news.ended
        for topic_no in asked:
            if topic_no not in news.limited:
                self._looked(topic_no, last)
        if news.limited:  # a limit may have held back any of the others
            for topic_no, rank_class, rank_at in zip(topic_nos, rank_classes, ranks_at, strict=True):
                if topic_no in news.limited:
                    self._looked(topic_no, (rank_class, rank_at))
        self.claimed(topic_nos, rank_classes, ranks_at)
        self.missed(news.locked)
        # Their arrivals were not reported.
        self.forget(asked if 0 in news.paused else news.paused)

    def missed(self, ranges: Iterable[RankRange]) -> None:
        """There may be claimable jobs in these: look there too."""
        for topic_no, rank_class, rank_from, rank_to in ranges:
            mark = self._marks.get(topic_no, {}).get(rank_class)
            if mark is not None:  # else claims look at all of the class
                self._add_gaps(mark, [(rank_from, rank_to + 1)])
                mark.floor = min(mark.floor, rank_from)

    def forget(self, topic_nos: Iterable[int]) -> None:
        """Start from the head of these topics again: what lies below their marks is not known."""
        for topic_no in topic_nos:
            self._marks.pop(topic_no, None)

    def clear(self) -> None:
        """Start from the head of everything."""
        self._marks.clear()
        self.seen = None

    @property
    def span_us(self) -> int:
        """The widest stretch of ranks below any mark: what a full round of sweeps has to cover."""
        return max((mark.rank - mark.floor for marks in self._marks.values() for mark in marks.values()), default=0)

    def _looked(self, topic_no: int, last: tuple[int, int] | None) -> None:
        """All candidates of a topic up to `last` (class, rank) were looked at; None: all there are."""
        for rank_class, mark in self._marks.get(topic_no, {}).items():
            if mark.gaps:
                if last is None or rank_class < last[0]:
                    mark.gaps.clear()
                elif rank_class == last[0]:
                    # From its rank on, not behind it: another job may have the same.
                    mark.gaps = [(max(start, last[1]), stop) for start, stop in mark.gaps if stop > last[1]]

    def _add_gaps(self, mark: _Mark, added: Iterable[tuple[int, int]]) -> None:
        gaps: list[tuple[int, int]] = []
        for start, stop in sorted([*mark.gaps, *added]):
            if gaps and start <= gaps[-1][1]:
                gaps[-1] = (gaps[-1][0], max(gaps[-1][1], stop))
            else:
                gaps.append((start, stop))
        while len(gaps) > MAX_GAPS:
            nearest = min(range(1, len(gaps)), key=lambda i: gaps[i][0] - gaps[i - 1][1])
            gaps[nearest - 1 : nearest + 1] = [(gaps[nearest - 1][0], gaps[nearest][1])]
        mark.gaps = gaps

    def _next_stretch(self, mark: _Mark, sweep_us: int) -> tuple[int, int]:
        """The stretch to look at now, downwards from the mark: what lands below it mostly lands just below it."""
        top = mark.swept if mark.floor < mark.swept <= mark.rank else mark.rank
        start = top - sweep_us
        if start <= mark.floor:
            # The end of a round looks at everything older as well: a job may have been away for longer than any mark.
            start = LOWEST_RANK
            mark.swept = mark.rank
        else:
            mark.swept = start
        return start, top
