"""The order of claims as a static sort key: (rank_class, rank_at), both fixed when the job is submitted.

Strict topics rank by priority, then by age. Ageing topics let a job gain one unit of priority for every `ageing_step`
it waits, so nothing starves. That sounds as if the order changed with time, and an index could not hold it. It does
not: at any instant the aged priority is

    priority + (now − submitted) / step

and for two jobs the difference of these, (p1 − p2) + (submitted2 − submitted1) / step, has no `now` in it. All jobs
age alike, so their order never changes, and `submitted − priority × step` sorts them forever. Ageing costs nothing
at claim time, then: same columns, same index, same statement as strict (requirement O9).

An ageing job has the class of priority 0, so that a worker listening to topics of both sorts gets one global order:
strict jobs above 0 first, then ageing jobs among strict jobs of priority 0, then strict jobs below 0.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from headgate.domain.timestamps import MICROSECOND
from headgate.domain.validation import check_ageing_step, check_priority

AGEING_CLASS: Final = -1


def rank_of(priority: int, ageing_step: timedelta | None) -> tuple[int, int]:
    """Give (rank_class, offset_us): rank_at is the time of submit in µs plus the offset; lower pairs run first."""
    priority = check_priority(priority)
    if ageing_step is None:
        # −1 − priority, and not −priority: the lowest int32 has no positive twin, and the column is an int4.
        return ~priority, 0
    return AGEING_CLASS, -priority * (check_ageing_step(ageing_step) // MICROSECOND)
