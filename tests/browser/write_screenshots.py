"""Writes pictures of all pages to docs/images: light, dark, narrow. `make screenshots` runs it.

Errors and empty pages in light only. The server has the jobs of a shop (shop_seed.py). The browser writes WebP: a tenth
of the size of PNG.
"""

from __future__ import annotations

import asyncio
import base64
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from headgate.web.navigation import ITEMS
from tests.browser.conftest import NARROW, WIDE, View, viewing
from tests.browser.routes import IMAGES, PICTURES, filled, open_paths, page_paths, picture_name
from tests.browser.seed import Seed
from tests.browser.shop_seed import DEADLINE_S, WORKER, failed_first, worked, write_history
from tests.support import http_clients
from tests.support.database import Server
from tests.support.read_only import set_read_only
from tests.support.server import LoggedProcess, clean_environ
from tests.support.wire import served

ROOT = Path(__file__).parents[2]
QUALITY = 50
TALLEST = {WIDE: 1_400, NARROW: 1_600}
"""Longer pages are cut here, in pixels."""
SIZES = {"light": WIDE, "dark": WIDE, "narrow": NARROW}
ERRORS = {"error-not-found": "/ui/nothing-here", "error-bad-filter": "/ui/jobs?filter=state:daed"}


@dataclass
class Shop:
    """A server that has been in use for an hour."""

    url: str
    seed: Seed
    dsn: str


@pytest.fixture(scope="module")
def shop(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder, seed = tmp_path_factory.mktemp("pictures"), Seed()
    with (
        served(postgres, template, folder, "--http-port", "0", "--name", "headgate-1") as (server, dsn),
        http_clients.client(base_url=server.http_url) as api,
    ):
        failed_first(api, seed)
        worker = LoggedProcess(
            "shop",
            [sys.executable, "-m", "headgate.cli", "worker", "tests.browser.shop:hg", "--worker-id", WORKER],
            folder=folder,
            environ={**clean_environ(), "PYTHONPATH": str(ROOT), "HEADGATE_URL": server.address},
        )
        try:
            worker.saw(r" connected server=")
            worked(api, seed)
            deadline = time.monotonic() + DEADLINE_S
            while not api.get(f"/v1/jobs/{seed.jobs['running']}").json().get("progress"):
                assert time.monotonic() < deadline, "no progress"
                time.sleep(0.2)
            with ThreadPoolExecutor() as beside:  # playwright has a loop of its own in this thread
                beside.submit(asyncio.run, write_history(dsn)).result()
            yield Shop(server.http_url, seed, dsn)
        finally:
            worker.kill()


@pytest.mark.parametrize("path", page_paths())
def test_write(browser: Browser, shop: Shop, path: str) -> None:
    for kind in PICTURES:
        write(browser, shop.url, filled(path, shop.seed.values), picture_name(path, kind), kind)


@pytest.mark.parametrize("name", ERRORS)
def test_write_errors(browser: Browser, shop: Shop, name: str) -> None:
    write(browser, shop.url, ERRORS[name], IMAGES / f"{name}-light.webp", "light")


def test_write_read_only(browser: Browser, shop: Shop) -> None:
    """The last one that uses the shop: its database takes no writes for a moment."""
    with ThreadPoolExecutor() as beside:
        beside.submit(asyncio.run, set_read_only(shop.dsn, to=True)).result()
        try:
            with viewing(browser, shop.url) as view:
                deadline = time.monotonic() + DEADLINE_S
                view.expected.append("the server responded with a status of 503")  # while connections are opened again
                view.open("/ui/topics/payments.capture")
                while not view.page.locator("#read-only").is_visible():
                    assert time.monotonic() < deadline, "the server has not noticed"
                    view.open("/ui/topics/payments.capture")
            write(browser, shop.url, "/ui/topics/payments.capture", IMAGES / "error-read-only-light.webp", "light")
        finally:
            beside.submit(asyncio.run, set_read_only(shop.dsn, to=False)).result()


@pytest.mark.parametrize("path", open_paths())
def test_write_without_login(browser: Browser, closed_url: str, path: str) -> None:
    for kind in PICTURES:
        write(browser, closed_url, path, picture_name(path, kind), kind)


@pytest.mark.parametrize("path", [item.path for item in ITEMS])
def test_write_empty(browser: Browser, dev_url: str, path: str) -> None:
    write(browser, dev_url, path, IMAGES / f"empty-{picture_name(path, 'light').name}", "light")


def write(browser: Browser, url: str, path: str, file: Path, kind: str) -> None:
    """One picture."""
    with viewing(browser, url, theme="dark" if kind == "dark" else "light", size=SIZES[kind]) as view:
        view.expected.append("the server responded with a status of 40")
        view.open(path)
        settle(view)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(picture(view.page, SIZES[kind]))


def settle(view: View) -> None:
    """Wait for parts that are read after the page, and for charts."""
    view.page.wait_for_load_state("load")
    view.page.locator("[hx-trigger='load']").first.wait_for(state="detached")
    view.page.wait_for_timeout(300)  # charts draw themselves


def picture(page: Page, size: tuple[int, int]) -> bytes:
    """The page as WebP, from its top."""
    height = min(page.evaluate("document.documentElement.scrollHeight"), TALLEST[size])
    session = page.context.new_cdp_session(page)
    answer = session.send(
        "Page.captureScreenshot",
        {
            "format": "webp",
            "quality": QUALITY,
            "captureBeyondViewport": True,
            "clip": {"x": 0, "y": 0, "width": size[0], "height": height, "scale": 1},
        },
    )
    return base64.b64decode(answer["data"])
