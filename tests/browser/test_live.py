"""Open pages follow what happens: soon, without moving rows that are in use, and without needless requests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.conftest import FRAMES, View, viewing
from tests.support import http_clients

WITHIN_S = 2.0
FIRST_VIEW_BYTES = 150_000
REQUESTS_PER_S = 2.0
LIMIT_MS = 30_000
LIVE = '#live-state[data-state="live"]'
ROWS = "[data-rows] tbody .row-link"
# Notes when a link to a job appears, by the clock of this machine.
SEEN = """
(id) => new Promise((resolve) => {
  const look = () => document.querySelector(`a[href*="${id}"]`) && resolve(performance.timeOrigin + performance.now());
  new MutationObserver(look).observe(document.body, { childList: true, subtree: true, attributes: true });
  look();
})
"""
MOVED = """(first) => document.querySelector("[data-rows] tbody .row-link").getAttribute("href") !== first"""
HIDE = """
(hidden) => {
  Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}
"""


@pytest.fixture(scope="module")
def api(dev_url: str) -> Iterator[httpx.Client]:
    with http_clients.client(base_url=dev_url) as client:
        for _ in range(5):
            submit(client)
        yield client


@pytest.fixture
def view(browser: Browser, dev_url: str, api: httpx.Client) -> Iterator[View]:
    with viewing(browser, dev_url) as opened:
        opened.open("/ui/jobs")
        opened.page.locator(LIVE).wait_for(timeout=LIMIT_MS)
        yield opened


def submit(api: httpx.Client, topic: str = "mail") -> str:
    answer = api.post("/v1/jobs", json={"topic": topic, "payload": {}})
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["id"]
    return found


def rows(page: Page) -> list[str]:
    found: list[str] = page.eval_on_selector_all(ROWS, "(links) => links.map((one) => one.getAttribute('href'))")
    return found


@contextmanager
def requests_of(page: Page) -> Iterator[list[str]]:
    """What the page asks for meanwhile."""
    found: list[str] = []

    def note(request: object) -> None:
        found.append(request.url)  # type: ignore[attr-defined]

    page.on("request", note)
    yield found
    page.remove_listener("request", note)


def test_a_job_is_shown_within_two_seconds_of_its_commit(view: View, api: httpx.Client) -> None:
    late = []
    for _ in range(3):
        began = time.time()  # before the commit
        job = submit(api)
        late.append(view.page.evaluate(SEEN, job) / 1000 - began)
    assert max(late) <= WITHIN_S, late


def test_rows_stay_where_they_are_while_one_is_selected(view: View, api: httpx.Client) -> None:
    page = view.page
    page.locator('input[name="id"][type="checkbox"]').first.check()
    before = rows(page)
    for _ in range(3):
        submit(api)
    offer = page.locator("#live-new")
    expect(offer).to_have_text("3 new · click to show", timeout=LIMIT_MS)
    assert rows(page) == before
    offer.click()
    expect(offer).to_be_hidden()
    page.wait_for_function(MOVED, arg=before[0])
    assert rows(page)[3:6] == before[:3]


def test_rows_stay_where_they_are_under_the_pointer(view: View, api: httpx.Client) -> None:
    page = view.page
    page.locator("[data-rows] tbody tr").nth(2).hover()
    before = rows(page)
    submit(api)
    expect(page.locator("#live-new")).to_have_text("1 new · click to show", timeout=LIMIT_MS)
    assert rows(page) == before


def test_an_answer_that_comes_after_updates_were_switched_off_is_not_shown(
    browser: Browser, dev_url: str, api: httpx.Client
) -> None:
    submit(api, "switched-off")
    held: list[Route] = []
    with viewing(browser, dev_url) as view:
        page = view.page
        page.route(
            "**/ui/jobs?*",
            lambda route: held.append(route) if "hx-request" in route.request.headers else route.continue_(),
        )
        with page.expect_request(lambda request: "/ui/jobs?" in request.url and "hx-request" in request.headers):
            view.open("/ui/jobs?filter=topic:switched-off")
            page.locator(LIVE).wait_for(timeout=LIMIT_MS)  # the first hint: all parts are read
        before = rows(page)
        submit(api, "switched-off")
        page.select_option("#live-mode", "off")
        with page.expect_response(lambda answer: "filter=topic%3Aswitched-off" in answer.url):
            held.pop().continue_()
        page.evaluate(FRAMES)
        assert rows(page) == before
        page.unroute_all()
        page.select_option("#live-mode", "live")
        page.wait_for_function(MOVED, arg=before[0])


def test_an_open_dialog_waits_for_its_answer(browser: Browser, view: View, api: httpx.Client) -> None:
    page = view.page
    page.locator('[data-open="help"]').click()
    before = rows(page)
    with viewing(browser, view.url) as other:
        other.open("/ui/jobs")
        other.page.locator(LIVE).wait_for(timeout=LIMIT_MS)
        other.page.evaluate(SEEN, submit(api))
    assert rows(page) == before
    page.keyboard.press("Escape")  # the pointer stays where it is, over no row
    page.wait_for_function(MOVED, arg=before[0])


def test_a_hidden_tab_asks_for_nothing_and_catches_up_when_it_is_shown(
    browser: Browser, view: View, api: httpx.Client
) -> None:
    page = view.page
    page.evaluate(HIDE, True)
    with requests_of(page) as asked, viewing(browser, view.url) as other:
        other.open("/ui/jobs")
        other.page.locator(LIVE).wait_for(timeout=LIMIT_MS)
        job = ""
        for _ in range(3):
            job = submit(api)
            other.page.evaluate(SEEN, job)
        assert asked == []
    page.evaluate(HIDE, False)
    page.evaluate(SEEN, job)


def test_a_tab_makes_at_most_two_requests_a_second(view: View, api: httpx.Client) -> None:
    page = view.page
    with requests_of(page) as asked:
        began = time.monotonic()
        while time.monotonic() - began < 5:
            submit(api)
            page.wait_for_timeout(50)
        took = time.monotonic() - began
    assert asked, "it follows"
    assert len(asked) / took <= REQUESTS_PER_S, asked


def test_two_tabs_share_one_stream_and_both_follow(view: View, api: httpx.Client) -> None:
    second = view.page.context.new_page()
    with requests_of(second) as asked:
        second.goto(f"{view.url}/ui/jobs")
        job = submit(api)
        view.page.evaluate(SEEN, job)
        second.evaluate(SEEN, job)
    assert not [url for url in asked if "/ui/live" in url]
    second.close()


@pytest.mark.parametrize("path", ["/ui", "/ui/jobs"])
def test_the_first_view_is_small(browser: Browser, dev_url: str, api: httpx.Client, path: str) -> None:
    for _ in range(50):  # a full page of the list
        submit(api, "many")
    with viewing(browser, dev_url) as opened:
        opened.open(path)
        opened.page.locator(LIVE).wait_for(timeout=LIMIT_MS)  # all modules have come
        size = opened.page.evaluate(
            """() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
                 .filter((one) => !one.name.endsWith("/ui/live"))
                 .reduce((sum, one) => sum + one.transferSize, 0)"""
        )
    assert 0 < size < FIRST_VIEW_BYTES, size


def test_rows_that_have_not_changed_are_not_offered_while_one_is_selected(
    browser: Browser, dev_url: str, api: httpx.Client
) -> None:
    submit(api, "unchanged")
    with viewing(browser, dev_url) as view:
        view.open("/ui/jobs?filter=topic:unchanged")
        view.page.locator('input[name="id"]').first.check()
        for _ in range(2):  # the first answer has no tag to compare it with
            with view.page.expect_response(lambda answer: "filter=topic%3Aunchanged" in answer.url):
                view.page.locator("#jobs").dispatch_event("hg:refresh")
        expect(view.page.locator("#live-new")).to_be_hidden()
        assert view.page.locator('input[name="id"]').first.is_checked()
        submit(api, "unchanged")
        with view.page.expect_response(lambda answer: "filter=topic%3Aunchanged" in answer.url):
            view.page.locator("#jobs").dispatch_event("hg:refresh")
        expect(view.page.locator("#live-new")).to_have_text("1 new · click to show")
