"""What requests over HTTP keep in memory."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.api.http.auth import RULE, Admission, Guard
from headgate.api.http.origins import ForgedRequest
from headgate.api.http.request import ApiRequest
from headgate.control.auth import AllowAll, KnowsAll
from headgate.control.failed_logins import FailedLogins
from headgate.control.permissions import RULES
from headgate.control.rate_limits import RateLimits
from headgate.domain import limits
from headgate.domain.errors import Overloaded
from headgate.domain.identity import Identity, PermissionDenied, Scope
from headgate.domain.topic_sets import TopicSet

CALLER = Identity(tenant="acme", subject="ana", scopes=frozenset(Scope))


async def test_a_request_keeps_the_size_of_its_body_and_not_the_body() -> None:
    raw = bytes(str(["x"] * 1_000), "ascii").replace(b"'", b'"')
    referred = sys.getrefcount(raw)
    rule = next(rule for rule in RULES.values() if rule.max_bytes > len(raw))
    scope: Any = {
        "type": "http",
        "headers": [(b"content-type", b"application/json")],
        "auth": Admission(AllowAll(), rule, asyncio.Semaphore()),
        "user": CALLER,
        "route_handler": SimpleNamespace(parsed_data_field=SimpleNamespace(annotation=list[str])),
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": raw, "more_body": False}

    request = ApiRequest(scope, receive)
    assert len(await request.body()) == len(raw)
    assert len(await request.json()) == 1_000
    assert request.size == len(raw)
    assert sys.getrefcount(raw) == referred


def test_the_bound_of_bodies_holds_however_many_credentials_there_are() -> None:
    guard = Guard(AllowAll(), {}, FailedLogins(), RateLimits())
    ours = guard._bodies_of("ours")
    for number in range(25_000):
        guard._bodies_of(str(number))
    assert guard._bodies_of("ours") is ours
    assert len(guard._bodies) == 1, "without a request, nothing is kept"


async def test_a_credential_has_a_bounded_number_of_bodies_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TURN_WITHIN", timedelta(seconds=0.01))
    bodies = asyncio.Semaphore(1)
    rule = RULES["/headgate.v1.ProducerService/Submit"]
    reads = 0

    async def receive() -> Any:
        nonlocal reads
        reads += 1
        return {"type": "http.request", "body": b"{}", "more_body": False}

    def request() -> ApiRequest:
        auth = Admission(AllowAll(), rule, bodies)
        scope: Any = {"type": "http", "headers": [], "auth": auth, "user": CALLER}
        return ApiRequest(scope, receive)

    async with bodies:  # as another request, whose body has not arrived yet
        with pytest.raises(Overloaded, match="too many requests with this token are incomplete"):
            await request().body()
        assert reads == 0
    assert await request().body() == b"{}"
    assert not bodies.locked(), "a turn ends with the body"


class OneToken(KnowsAll):
    """Every token is that of mia, who may operate the topic mail."""

    identity = Identity(tenant="acme", subject="mia", scopes=frozenset({Scope.OPERATE}), topics=TopicSet.of("mail"))

    def identify(self, token: str) -> Identity:
        del token
        return self.identity


def asked(method: str, **headers: str) -> Any:
    return SimpleNamespace(
        scope={"path_params": {}, "method": method}, headers={"host": "127.0.0.1:7071", **headers}, query_params={}
    )


def routed(rule: str) -> Any:
    return SimpleNamespace(opt={RULE: rule})


async def test_a_token_for_some_topics_is_refused_what_reaches_all_topics_also_over_http() -> None:
    guard = Guard(cast("Any", OneToken()), RULES, FailedLogins(), RateLimits())
    await guard(asked("POST", authorization="Bearer x"), routed("/headgate.v1.AdminService/CancelJobs"))
    with pytest.raises(PermissionDenied, match="reaches all topics"):
        await guard(asked("POST", authorization="Bearer x"), routed("/headgate.v1.WebhookService/Create"))


async def test_without_a_login_a_change_that_another_site_sends_is_refused() -> None:
    guard = Guard(AllowAll(), RULES, FailedLogins(), RateLimits())
    route = routed("/headgate.v1.AdminService/CancelJobs")
    await guard(asked("POST"), route)
    with pytest.raises(ForgedRequest):
        await guard(asked("POST", **{"sec-fetch-site": "cross-site", "origin": "https://evil.example"}), route)
