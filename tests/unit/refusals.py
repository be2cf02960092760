"""One way to look at a refusal: typed, naming the field and the limit, and not echoing what was refused at length."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headgate.domain.errors import InvalidInput

MESSAGE_MAX = 420  # field, limit, rule and at most some 80 characters of the value


def assert_refused(
    call: Callable[[], object], *, field: str, says: str | tuple[str, ...], kind: type[InvalidInput] = InvalidInput
) -> None:
    """`call` raises exactly `kind`, for `field`, with every text of `says` in its message."""
    with pytest.raises(InvalidInput) as caught:
        call()
    error = caught.value
    message = str(error)
    assert type(error) is kind, message
    assert error.field == field, message
    assert message.startswith(f"{field}: ")
    for text in (says,) if isinstance(says, str) else says:
        assert text in message
    assert len(message) <= MESSAGE_MAX, message
    message.encode()  # can be logged and sent, whatever was refused
    assert "\x00" not in message
    assert "\n" not in message
