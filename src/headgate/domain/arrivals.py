"""What a claim tells beside its jobs: which arrivals it has seen, and where to look again (ADR 0021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Seen(NamedTuple):
    """Passed on from one claim to the next: the database's snapshot, and how often old arrivals had been deleted."""

    snapshot: str
    generation: int


class RankRange(NamedTuple):
    """Ranks of one topic and class, both ends included."""

    topic_no: int
    rank_class: int
    rank_from: int
    rank_to: int


@dataclass(slots=True, kw_only=True)  # not frozen: one is made for every claim
class ClaimNews:
    """What the caller must know to keep its watermark right; see claim_v1.sql."""

    seen: Seen
    arrived: Sequence[RankRange] = ()  # looked at although not asked for
    locked: Sequence[RankRange] = ()  # jobs there were locked by others, and may be claimable again
    paused: frozenset[int] = frozenset()  # topics that were not looked at
    limited: frozenset[int] = frozenset()  # topics of which a limit may have held jobs back
    ended: tuple[int, int] | None = None  # candidates were looked at up to this (class, rank) only
    restart: bool = False  # arrivals were missed: everything was looked at, from the head
