"""What an operator does with jobs: find one and redrive it, edit and redrive, redrive ten thousand, select rows."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Route, expect

from tests.browser.conftest import FRAMES, NARROWEST, viewing
from tests.support import http_clients
from tests.support.dashboard import died, submitted

SOON_MS = 30_000
"""A machine may stall; what is promised in seconds is measured elsewhere."""
TRACE = 'Traceback (most recent call last):\n  File "/app/shop/jobs.py", line 7, in charge\n    bank.charge()\n'


@pytest.fixture(scope="module")
def api(dev_url: str) -> Iterator[httpx.Client]:
    """The REST API of the server."""
    with http_clients.client(base_url=dev_url) as client:
        yield client


def test_a_failed_job_is_found_with_suggestions_and_redriven(browser: Browser, dev_url: str, api: httpx.Client) -> None:
    (one,) = submitted(api, "billing.invoice", payload={"order": 7, "password": "hunter2"})
    died(api, "billing.invoice", message="bank API did not answer", traceback=TRACE)
    with viewing(browser, dev_url) as view:
        page = view.page
        view.open("/ui/jobs")
        bar = page.get_by_role("combobox", name="Filter")
        options = page.locator(".suggestions").get_by_role("option")
        bar.press_sequentially("sta")
        expect(options.first).to_contain_text("state:")
        bar.press("ArrowDown")
        expect(bar).to_have_attribute("aria-activedescendant", re.compile(r"-0$"))
        bar.press("Enter")
        expect(bar).to_have_value("state:")
        expect(options.filter(has_text="dead")).to_be_visible()
        bar.press_sequentially("de")
        expect(options).to_have_count(1)
        bar.press("ArrowDown")
        bar.press("Enter")
        expect(bar).to_have_value("state:dead ")
        bar.press_sequentially("topic:bill")
        options.filter(has_text="billing.invoice").click()
        bar.press("Escape")
        bar.press("Enter")
        expect(page).to_have_url(re.compile(r"filter=state%3Adead\+topic%3Abilling\.invoice"))
        page.locator("a.row-link").first.click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(one)
        expect(page.locator(".attempt").first).to_contain_text("bank API did not answer")
        expect(page.locator("body")).not_to_contain_text("hunter2")
        view.check_accessible()
        page.get_by_role("button", name="Redrive", exact=True).click()
        expect(page.locator("#toasts")).to_contain_text("1 job redriven")
        expect(page.locator(".job-title .state")).to_have_text("pending")
    assert api.get(f"/v1/jobs/{one}").json()["state"] == "pending"


def test_a_late_answer_does_not_take_the_marked_suggestion_away(browser: Browser, dev_url: str) -> None:
    """Enter would send the unfinished filter instead of taking the suggestion."""
    held: list[Route] = []
    with viewing(browser, dev_url) as view:
        page = view.page
        view.open("/ui/jobs")
        page.route(
            "**/ui/jobs/suggest?*",
            lambda route: held.append(route) if "filter=sta&" in route.request.url else route.continue_(),
        )
        bar = page.get_by_role("combobox", name="Filter")
        bar.press_sequentially("st")
        expect(page.locator(".suggestions").get_by_role("option").first).to_contain_text("state:")
        with page.expect_request(lambda request: "filter=sta&" in request.url):
            bar.press_sequentially("a")
        bar.press("ArrowDown")
        with page.expect_response("**/ui/jobs/suggest?*"):
            held.pop().continue_()
        page.evaluate(FRAMES)
        bar.press("Enter")
        expect(bar).to_have_value("state:")


def test_a_payload_is_edited_and_a_mistake_is_shown_at_its_field(
    browser: Browser, dev_url: str, api: httpx.Client
) -> None:
    (one,) = submitted(api, "edit", payload={"to": "ada", "token": "s3cret"})
    died(api, "edit")
    with viewing(browser, dev_url) as view:
        page = view.page
        view.expected.append("400 (Bad Request)")
        view.open(f"/ui/jobs/{one}")
        page.get_by_role("link", name="Edit payload and redrive").click()
        field = page.get_by_label("Payload (JSON)")
        expect(field).to_have_value(re.compile("•••"))
        field.fill('{"to": ')
        page.get_by_role("button", name="Redrive with this payload").click()
        expect(page.locator("#payload-error")).to_contain_text("is not JSON")
        view.check_accessible()
        page.get_by_label("Payload (JSON)").fill('{"to": "grace", "token": "•••"}')
        page.get_by_role("button", name="Redrive with this payload").click()
        expect(page.locator(".job-title .state")).to_have_text("pending")
    assert api.get(f"/v1/jobs/{one}?with_payload=true").json()["payload"] == {"to": "grace", "token": "s3cret"}


def test_ten_thousand_dead_letters_are_redriven_with_progress(
    browser: Browser, dev_url: str, api: httpx.Client
) -> None:
    submitted(api, "many", 10_000)
    died(api, "many", message="no user 7")
    with viewing(browser, dev_url) as view:
        page = view.page
        view.open("/ui/dead?topic=many")
        expect(page.locator("#dead")).to_contain_text("10,000")
        page.locator("#dead").get_by_role("link", name="Redrive …").click()
        expect(page.locator("#preview-title")).to_contain_text("10,000 jobs match")
        start = page.get_by_role("button", name="Redrive 10,000 jobs")
        page.get_by_label("Type 10000 to confirm").fill("10000")
        view.check_accessible()
        start.click()
        expect(page).to_have_url(re.compile("/ui/operations/[0-9a-f-]{36}$"))
        # The page follows the operation by itself until it is over.
        expect(page.locator("#progress")).to_contain_text("done", timeout=60_000)
        expect(page.locator("#progress")).to_contain_text("10,000")
        expect(page.locator("[data-share]")).to_have_text("100 %")
        view.check_accessible()
    assert api.get("/v1/jobs/count?filter=topic:many state:pending").json()["total"] == 10_000


def test_selected_rows_stay_under_the_pointer(browser: Browser, dev_url: str, api: httpx.Client) -> None:
    ids = submitted(api, "steady", 5)
    with viewing(browser, dev_url) as view:
        page = view.page
        view.open("/ui/jobs?filter=topic:steady")
        rows = page.locator("tr[data-id]")
        expect(rows).to_have_count(5)
        first = page.get_by_label(f"Select job {ids[0]}")
        first.check()
        page.get_by_label(f"Select job {ids[2]}").click(modifiers=["Shift"])
        expect(page.locator("[data-selected-count]")).to_have_text("3 selected")
        submitted(api, "steady")  # a hint makes the page read the list
        expect(page.locator("#live-new")).to_have_text("1 new · click to show", timeout=SOON_MS)
        expect(rows).to_have_count(5)
        expect(first).to_be_checked()
        view.check_accessible()
        page.get_by_role("button", name="Cancel", exact=True).click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Cancel these 3 jobs?")
        dialog.get_by_role("button", name="Cancel 3").click()
        expect(page.locator("#flash")).to_contain_text("3 jobs cancelled")
        expect(rows).to_have_count(6)  # the selection is over, and the page is current
        expect(page.locator("[data-selected-count]")).to_have_text("Select rows")
    assert api.get("/v1/jobs/count?filter=topic:steady state:cancelled").json()["total"] == 3


def test_pages_about_jobs_fit_the_narrowest_screen(browser: Browser, dev_url: str, api: httpx.Client) -> None:
    (one,) = submitted(api, "narrow." + "x" * 150, payload={"long": "y" * 500}, tags=["z" * 100])
    died(api, "narrow." + "x" * 150, message="w" * 500)
    with viewing(browser, dev_url) as view:
        for path in (f"/ui/jobs/{one}", "/ui/jobs?filter=tag:" + "z" * 100, "/ui/dead", f"/ui/jobs/{one}/edit"):
            view.open(path)
            view.check_width(NARROWEST)
