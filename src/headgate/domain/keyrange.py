"""Stretches of the claim order: where a claim looks.

The order is (rank_class, rank_at), see rank.py. A claim takes, per topic, ascending stretches [from, to) of it; what
the watermark knows to be dead lies between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Self

LOWEST: Final = (-(2**31), -(2**63))
HIGHEST: Final = (2**31 - 1, 2**63 - 1)


@dataclass(slots=True)
class KeyRanges:
    """Parallel lists, as the claim function takes them; stretches of one topic stand in ascending order."""

    topic_nos: list[int] = field(default_factory=list)
    class_from: list[int] = field(default_factory=list)
    rank_from: list[int] = field(default_factory=list)
    class_to: list[int] = field(default_factory=list)
    rank_to: list[int] = field(default_factory=list)

    def add(self, topic_no: int, low: tuple[int, int], high: tuple[int, int]) -> None:
        """Append one stretch."""
        self.topic_nos.append(topic_no)
        self.class_from.append(low[0])
        self.rank_from.append(low[1])
        self.class_to.append(high[0])
        self.rank_to.append(high[1])

    def extend(self, other: KeyRanges) -> None:
        """Append all of another's."""
        self.topic_nos += other.topic_nos
        self.class_from += other.class_from
        self.rank_from += other.rank_from
        self.class_to += other.class_to
        self.rank_to += other.rank_to

    @classmethod
    def whole(cls, topic_nos: Iterable[int]) -> Self:
        """Every topic from its very head: right always, and slow when dead rows lie there."""
        ranges = cls()
        for topic_no in topic_nos:
            ranges.add(topic_no, LOWEST, HIGHEST)
        return ranges
