"""A connected worker, as others may see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A connected worker. `credit` is how many more jobs it would take; a quiet one gets none of them."""

    worker: str
    instance: str = ""
    topics: Sequence[str] = ()
    holding: int = 0
    credit: int = 0
    quiet: bool = False
