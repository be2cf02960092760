"""Exit codes that scripts rely on, for what the SDK raises."""

from __future__ import annotations

import pytest

from headgate import HeadgateError, InvalidInput, NotConnected, NotFound, Refused
from headgate.cli.errors import exit_code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInput("topic", "is wrong"), 2),
        (NotFound("job", "x"), 3),
        (Refused("it runs"), 4),
        (NotConnected("nobody answers"), 5),
        (HeadgateError("else"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, HeadgateError) else str(value),
)
def test_an_error_has_its_exit_code(error: HeadgateError, code: int) -> None:
    assert exit_code(error) == code
