"""Browsers under several tokens, and a client that submits and runs jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import httpx
import pytest

from tests.e2e.web.conftest import OPERATOR
from tests.support.dashboard import Visit
from tests.support.server import ServerProcess

As: TypeAlias = Callable[[str], Visit]


@pytest.fixture
def as_(running: tuple[ServerProcess, str]) -> Iterator[As]:
    """A browser under a token."""
    made: dict[str, Visit] = {}

    def visit(token: str) -> Visit:
        if token not in made:
            made[token] = Visit(running[0].http_url)
            made[token].sign_in(token)
        return made[token]

    yield visit
    for one in made.values():
        one.close()


@pytest.fixture
def web(as_: As) -> Visit:
    """The browser of an operator."""
    return as_(OPERATOR)


@pytest.fixture
def limited(as_: As, api: httpx.Client) -> Visit:
    """The browser of a key for one topic."""
    key = {"name": "limited", "scopes": ["read", "operate"], "topics": ["visible"]}
    answer = api.post("/v1/keys", json=key)
    assert answer.status_code == 201, answer.text
    return as_(answer.json()["key"])
