"""Workers: what a job's row says of the one that has it, and a connected one as others may see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

INCARNATION_MARK: Final = "\x1f"
"""Between a worker's id, which has no control characters, and its incarnation. Who reads a row cuts there (chr(31))."""


def stored_worker(worker_id: str, incarnation: int) -> str:
    """What a claim writes on the row: it tells processes apart that go by the same worker id."""
    return f"{worker_id}{INCARNATION_MARK}{incarnation:x}" if incarnation else worker_id


def worker_id_of(stored: object) -> object:
    """The worker's id in what a row or a claim names; anything but text is left for the check to refuse."""
    return stored.partition(INCARNATION_MARK)[0] if isinstance(stored, str) else stored


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A connected worker. `credit` is how many more jobs it would take; a quiet one gets none of them."""

    worker: str
    instance: str = ""
    topics: Sequence[str] = ()
    holding: int = 0
    credit: int = 0
    quiet: bool = False
