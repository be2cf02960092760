"""Every page and action, asked by each role: the guard refuses what the rule of the page does not permit.

The forms are empty: a use case would complain about them, so a refusal for the scope comes from the guard alone.
"""

from __future__ import annotations

import re

import pytest

from headgate.api.http.auth import OPEN, RULE
from headgate.control.permissions import RULES
from headgate.domain.errors import HeadgateError
from headgate.domain.identity import Identity, Scope
from headgate.web.pages import all_routes
from tests.e2e.web.conftest import ADMIN, OPERATOR, SYSTEM, TOKENS, VIEWER, Sign
from tests.support.dashboard import text_of

NOBODYS = "01890000-0000-7000-8000-000000000000"


def routes(method: str) -> list[tuple[str, str]]:
    """Path and rule of each page or action; what a path names does not exist."""
    return [
        (re.sub(r"{(\w+):\w+}", lambda found: NOBODYS if found[1].endswith("_id") else "no-such", path), one.opt[RULE])
        for one in all_routes()
        if method in one.http_methods and not one.opt.get(OPEN)
        for path in one.paths
    ]


def permits(token: str, rule: str) -> bool:
    entry = TOKENS[token]
    scopes = frozenset(Scope(one) for one in entry["scopes"])  # type: ignore[attr-defined]
    try:
        RULES[rule].admit(Identity(tenant=str(entry.get("tenant", "")), subject="x", scopes=scopes))
    except HeadgateError:
        return False
    return True


@pytest.mark.parametrize("token", [VIEWER, OPERATOR, ADMIN, SYSTEM])
def test_the_guard_refuses_every_action_that_the_role_does_not_have(sign: Sign, token: str) -> None:
    browser = sign(token)
    refused = 0
    for path, rule in routes("POST"):
        if permits(token, rule):
            continue
        answer = browser.submit(path)
        assert answer.status_code == 403, (path, answer.status_code)
        assert "this needs the scope" in text_of(answer), path
        part = browser.submit(path, hx_request="true")
        assert part.status_code == 403, path
        refused += 1
    assert refused >= {VIEWER: 25, OPERATOR: 4, ADMIN: 0, SYSTEM: 20}[token], "else this would prove nothing"


@pytest.mark.parametrize("token", [VIEWER, OPERATOR, ADMIN, SYSTEM])
def test_the_guard_opens_the_pages_of_a_role_and_no_others(sign: Sign, token: str) -> None:
    browser = sign(token)
    for path, rule in routes("GET"):
        if path == "/ui/live":
            continue  # a stream: tests/e2e/web/test_live.py
        answer = browser.get(path)
        if permits(token, rule):
            assert answer.status_code in (200, 400, 404), (path, answer.status_code)
        else:
            assert answer.status_code == 403, (path, answer.status_code)
            assert "this needs the scope" in text_of(answer), path
