"""A database that takes no writes any more: open pages say so, hide what would change something, and recover."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import NARROWEST, PLAIN, viewing
from tests.support import http_clients
from tests.support.database import Server
from tests.support.read_only import set_read_only
from tests.support.server import ServerProcess
from tests.support.wire import served

LIMIT_MS = 20_000
LIVE = '#live-state[data-state="live"]'


@pytest.fixture(scope="module")
def running(
    postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, str]]:
    with served(postgres, template, tmp_path_factory.mktemp("read_only"), *PLAIN) as both:
        yield both


@pytest.fixture
def read_only(running: tuple[ServerProcess, str]) -> Iterator[Callable[[bool], None]]:
    """Switches the database; playwright has a loop of its own in this thread."""
    with ThreadPoolExecutor() as beside:

        def switch(to: bool) -> None:
            beside.submit(asyncio.run, set_read_only(running[1], to=to)).result()

        yield switch
        switch(False)


def test_an_open_page_notices_that_nothing_can_be_changed_and_that_it_can_again(
    browser: Browser, running: tuple[ServerProcess, str], read_only: Callable[[bool], None]
) -> None:
    url = running[0].http_url
    with http_clients.client(base_url=url) as api:
        job = api.post("/v1/jobs", json={"topic": "mail", "payload": {}}).json()["id"]
    with viewing(browser, url) as view:
        view.expected.append("the server responded with a status of 503")
        view.open(f"/ui/jobs/{job}")
        banner, cancel = view.page.locator("#read-only"), view.page.get_by_role("button", name="Cancel", exact=True)
        expect(banner).to_be_hidden()
        expect(cancel).to_be_visible()
        view.page.locator(LIVE).wait_for(timeout=LIMIT_MS)

        read_only(True)
        expect(banner).to_be_visible(timeout=LIMIT_MS)
        expect(cancel).to_be_hidden(timeout=LIMIT_MS)
        view.check_accessible()
        view.check_width(NARROWEST)

        read_only(False)
        expect(banner).to_be_hidden(timeout=LIMIT_MS)
        expect(cancel).to_be_visible(timeout=LIMIT_MS)
