"""The shape of a call, checked once per call and never per row.

Values of rows were checked when these were made; should a row be wrong anyway, the driver's encoder or the
database refuses it, and errors.py names the argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from headgate.domain.errors import InvalidInput, TooLarge
from headgate.domain.validation import check_integer, shown

INT32_MAX: Final = 2**31 - 1
_Kind = TypeVar("_Kind")


def check_tenant_no(value: object) -> int:
    """Accept the number of a tenant. Whether there is such a tenant only the database knows."""
    return check_integer(value, field="tenant_no", low=1, high=INT32_MAX)


def check_rows(value: object, *, field: str, limit: int, unit: str = "rows", hint: str = "work in chunks") -> int:
    """Accept a list (or another sequence) of at most `limit` elements; returns how many there are."""
    # Text and bytes are sequences too, and each character would be taken for a row.
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidInput(field, f"must be a list of at most {limit} {unit}, got {shown(value)}")
    if len(value) > limit:
        raise TooLarge(field, size=len(value), limit=limit, unit=unit, hint=hint)
    return len(value)


def check_parallel(field: str, size: int, columns: dict[str, Sequence[Any]], *, may_end_early: bool = False) -> None:
    """Refuse columns that do not run parallel: a shorter one would be padded with NULLs."""
    for name, column in columns.items():
        if len(column) > size or (len(column) < size and not may_end_early):
            raise InvalidInput(field, f"{name} has {len(column)} elements for {size} rows; give one for each")


def checked_kind(value: object, kind: type[_Kind], *, field: str) -> _Kind:
    """The value, if it is a `kind`."""
    if not isinstance(value, kind):
        raise InvalidInput(field, f"must be {kind.__name__}, got {shown(value)}")
    return value


def check_kind(value: object, kind: type, *, field: str) -> None:
    """Refuse what is not a `kind`, for callers that no type checker has looked at."""
    if not isinstance(value, kind):
        raise InvalidInput(field, f"must be {kind.__name__}, got {shown(value)}")
