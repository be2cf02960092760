"""How far a running job is, as its worker reports it."""

from __future__ import annotations

from headgate.domain import limits
from headgate.domain.errors import InvalidInput
from headgate.domain.validation import check_integer, clean_text


def progress_values(done: int, total: int, message: str, *, at_us: int) -> dict[str, object]:
    """Return the values to store; `at_us` is when the report arrived. Raises InvalidInput."""
    done = check_integer(done, field="progress.done", low=0, high=2**62)
    total = check_integer(total, field="progress.total", low=0, high=2**62)
    if total and done > total:
        raise InvalidInput("progress.done", f"{done} is more than the total of {total}")
    return {"done": done, "total": total, "message": clean_text(message, limits.REASON_MAX_CHARS), "at_us": at_us}
