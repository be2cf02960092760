"""How long a job of an ageing topic can wait at most: the formula of docs/howto/operate.md, which tests check."""

from __future__ import annotations

from datetime import timedelta

from headgate.domain.validation import check_ageing_step, check_priority


def ageing_wait_bound(priority: int, highest: int, step: timedelta) -> timedelta:
    """The longest time in which jobs submitted later can still overtake: (highest − priority) × step.

    `highest` is the highest priority anyone submits with. After that time a job waits only for what was ahead of it
    then; it cannot starve. A strict topic has no such bound.
    """
    span = check_priority(highest, field="highest") - check_priority(priority)
    return max(span, 0) * check_ageing_step(step, field="step")
