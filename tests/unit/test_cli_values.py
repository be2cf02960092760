"""Values of the command line that are read from text."""

from __future__ import annotations

import pytest

from headgate.cli.values import headers
from headgate.domain.errors import InvalidInput


def test_headers_are_names_and_values() -> None:
    assert headers(["a=1", "headgate-webhook=x=y", "empty="], field="--header") == {
        "a": "1",
        "headgate-webhook": "x=y",
        "empty": "",
    }


@pytest.mark.parametrize(
    ("given", "says"), [(["a"], "must be NAME=VALUE"), (["=1"], "must be NAME=VALUE"), (["a=1", "a=2"], "twice")]
)
def test_other_headers_are_refused(given: list[str], says: str) -> None:
    with pytest.raises(InvalidInput, match=f"--header.*{says}"):
        headers(given, field="--header")
