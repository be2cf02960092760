"""Rows whose columns are the first fields of a record, in their order."""

from __future__ import annotations

from itertools import islice
from typing import Any, TypeVar

Record = TypeVar("Record")


def from_row(kind: type[Record], row: Any, /, **others: Any) -> Record:
    """The record of a row. `others` replaces columns that have another form, and has the fields beyond the columns."""
    names = islice(kind.__dataclass_fields__, len(row))  # type: ignore[attr-defined]  # a dataclass
    return kind(**dict(zip(names, row, strict=True)) | others)
