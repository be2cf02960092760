"""Texts of operators on their way to the wire, which carries UTF-8 only."""

from __future__ import annotations

from headgate.domain.errors import InvalidInput
from headgate.domain.validation import shown


def utf8_text(value: object, *, field: str) -> str:
    """Accept any str that has a UTF-8 form; what else it may hold is for the server to say. Raises InvalidInput.

    A lone surrogate has none: names of files and arguments of commands that are no UTF-8 arrive in Python with some.
    """
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be a str, got {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            field, f"has a lone surrogate ({value[error.start]!a} at {error.start}) and no UTF-8 form"
        ) from None
    return value
