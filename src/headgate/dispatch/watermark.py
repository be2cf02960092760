"""Where a claim need not look: the soft watermark.

A claimed job leaves a dead entry at the head of the claim index. Vacuum removes it, unless somebody's old snapshot is
held; then every claim that starts at the head walks the whole graveyard. So claims start where the last one ended: one
mark per (topic, rank class), because each class has its own dead prefix, for a bounded number of classes.

The mark is a hint, never the truth. Work lands below it: a retry or a hand-back keeps its old rank, a slow transaction
commits late, another instance's clock lags. Three things make up for that:
- what this instance knows to have come back (promotion, hand-back, nack 0, reprioritise, redrive) is claimed by its id;
- `sweep()` widens the next ranges by a stretch below the marks, stretch after stretch, so that within a full round
  everything below has been looked at; the caller paces it so that a round takes a second or two;
- `lower()` moves a mark back when there is news of work below it.

Times here are ranks: microseconds of the database's clock. Nothing in this module reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.domain.keyrange import HIGHEST, LOWEST, KeyRanges

LOWEST_RANK: Final = LOWEST[1]
MAX_CLASSES: Final = 8
"""Marks kept per topic. Every mark is one more index probe per claim and topic; more priorities than this in use at
once share the stretch of the class before them, which is right, only slower under a held snapshot."""


@dataclass(slots=True)
class _Mark:
    rank: int  # nothing below is known to be pending
    floor: int  # the lowest rank ever marked: dead entries lie from here to the mark
    swept: int  # the sweep of this round has looked at everything below this
    used: int  # when it last moved, in claims


class Watermark:
    """The marks of one instance and tenant."""

    def __init__(self, *, max_classes: int = MAX_CLASSES) -> None:
        self._marks: dict[int, dict[int, _Mark]] = {}
        self._max_classes = max_classes
        self._claims = 0

    def ranges(self, topic_nos: Iterable[int], *, sweep_us: int = 0) -> KeyRanges:
        """Where to claim from now. With `sweep_us`, also the next stretch of that many µs of rank below each mark."""
        found = KeyRanges()
        for topic_no in topic_nos:
            low = LOWEST
            marks = self._marks.get(topic_no, {})
            for rank_class in sorted(marks):
                mark = marks[rank_class]
                # Up to this class: from the mark of the class before, over the gap in which no class is known.
                found.add(topic_no, low, (rank_class, LOWEST_RANK))
                if sweep_us:
                    start, stop = self._next_stretch(mark, sweep_us)
                    found.add(topic_no, (rank_class, start), (rank_class, stop))
                low = (rank_class, mark.rank)
            found.add(topic_no, low, HIGHEST)
        return found

    def claimed(self, topic_nos: Sequence[int], rank_classes: Sequence[int], ranks_at: Sequence[int]) -> None:
        """Raise the marks to the last job of each class in a claim that came in order.

        Everything that stood before those jobs and could be seen was claimed with them or by somebody else.
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

    def lower(self, topic_no: int, rank_class: int, rank_at: int) -> None:
        """There may be work of this class from `rank_at` on: look there again."""
        mark = self._marks.get(topic_no, {}).get(rank_class)
        if mark is not None:
            mark.rank = min(mark.rank, rank_at)
            mark.floor = min(mark.floor, rank_at)

    def forget(self, topic_nos: Iterable[int]) -> None:
        """Start from the head of these topics again: what lies below their marks is known to be there."""
        for topic_no in topic_nos:
            self._marks.pop(topic_no, None)

    def is_below(self, topic_no: int, rank_class: int, rank_at: int) -> bool:
        """Whether a claim from the marks on would not see it."""
        mark = self._marks.get(topic_no, {}).get(rank_class)
        return mark is not None and rank_at < mark.rank

    @property
    def span_us(self) -> int:
        """The widest stretch of ranks below any mark: what a full round of sweeps has to cover."""
        return max((mark.rank - mark.floor for marks in self._marks.values() for mark in marks.values()), default=0)

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
