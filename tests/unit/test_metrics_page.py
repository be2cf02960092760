"""Who gets which metrics."""

from __future__ import annotations

import pytest

from headgate.control.metrics import MetricsPage
from headgate.domain.identity import Identity, PermissionDenied, Scope


class Text:
    """Remembers for which tenant it was asked."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []

    async def page(self, accept: str = "", *, tenant: str | None = None) -> tuple[bytes, str]:
        self.asked.append(tenant)
        return accept.encode(), "text/plain"


def caller(scope: Scope, tenant: str = "acme", topics: frozenset[str] | None = None) -> Identity:
    return Identity(tenant=tenant, subject="ana", scopes=frozenset({scope}), topics=topics)


async def test_a_tenant_gets_its_own_topics_and_the_system_all() -> None:
    text = Text()
    page = MetricsPage(text, is_open=False)
    await page.page(caller(Scope.READ), "")
    await page.page(caller(Scope.SYSTEM, tenant=""), "")
    assert text.asked == ["acme", None]


async def test_a_token_for_some_topics_and_none_at_all_are_refused() -> None:
    page = MetricsPage(Text(), is_open=False)
    for refused in (caller(Scope.READ, topics=frozenset({"mail"})), None):
        with pytest.raises(PermissionDenied):
            await page.page(refused, "")


async def test_an_open_page_needs_no_token() -> None:
    text = Text()
    assert await MetricsPage(text, is_open=True).page(None, "x") == (b"x", "text/plain")
    assert text.asked == [None]
