"""The JSON Schema of a topic's payloads as it is stored: a text. control/payload_check.py applies it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from headgate.domain.errors import InvalidInput, TooLarge
from headgate.domain.validation import shown

FIELD: Final = "payload_schema"
SCHEMA_MAX_BYTES: Final = 65_536
"""Every instance keeps the schemas of all topics in memory."""


def checked_schema(value: object, *, field: str = FIELD) -> str:
    """Accept a JSON Schema as a mapping or as JSON text; returns it as compact JSON text, keys in their order."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise InvalidInput(field, f"is not JSON (line {error.lineno}, column {error.colno}: {error.msg})") from None
        except (ValueError, RecursionError):
            raise InvalidInput(field, "is not JSON that can be read: nested too deeply, or a number too long") from None
    if not isinstance(value, Mapping):
        raise InvalidInput(field, f"must be a JSON object, got {shown(value)}", hint='such as {"type": "object"}')
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InvalidInput(field, "has a value that JSON does not have") from None
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput(field, "has a character that UTF-8 cannot encode") from None
    if size > SCHEMA_MAX_BYTES:
        raise TooLarge(field, size=size, limit=SCHEMA_MAX_BYTES)
    return text
