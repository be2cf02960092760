"""Exit codes that scripts rely on, for what the SDK raises."""

from __future__ import annotations

import os

import pytest

from headgate import HeadgateError, InvalidInput, NotConnected, NotFound, Refused
from headgate.cli.errors import exit_code
from headgate.cli.grpc_settings import configure_grpc


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


@pytest.mark.parametrize(("given", "used"), [(None, "NONE"), ("INFO", "INFO")])
def test_grpc_prints_nothing_of_its_own_unless_asked_to(
    given: str | None, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPC_EXPERIMENTS", "")
    monkeypatch.setenv("GRPC_VERBOSITY", given or "")
    if given is None:
        monkeypatch.delenv("GRPC_VERBOSITY")
    configure_grpc()
    assert os.environ["GRPC_VERBOSITY"] == used
