"""A job beside the list of jobs, the keys that act on rows, and deletes that can be undone."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import NARROWEST, View, viewing
from tests.browser.seed import CANARY, done
from tests.support import http_clients
from tests.support.dashboard import died, submitted

UNDO_S = 10


@pytest.fixture(scope="module")
def api(dev_url: str) -> Iterator[httpx.Client]:
    """The REST API of the server."""
    with http_clients.client(base_url=dev_url) as client:
        yield client


@pytest.fixture
def view(browser: Browser, dev_url: str) -> Iterator[View]:
    with viewing(browser, dev_url) as opened:
        yield opened


def open_list(view: View, path: str) -> None:
    """Open a list of jobs, and wait for its scripts: keys do nothing before."""
    view.open(path)
    wait_for_scripts(view)


def wait_for_scripts(view: View) -> None:
    expect(view.page.locator("[data-selected-count]")).to_have_text("Select rows")


def test_a_preview_opens_beside_the_list_and_follows_the_keys(view: View, api: httpx.Client) -> None:
    ids = submitted(api, "preview", 3, payload={"to": CANARY})
    page = view.page
    open_list(view, "/ui/jobs?filter=topic:preview&order=oldest")
    drawer = page.locator("#preview")
    page.keyboard.press("j")
    page.keyboard.press("Space")
    expect(drawer.get_by_text(ids[0])).to_be_visible()
    expect(drawer).to_contain_text(CANARY)
    expect(page.locator("#preview-status")).to_have_text("Preview: preview, pending")
    expect(page.locator("tr.is-previewed")).to_have_count(1)
    view.check_accessible()
    page.keyboard.press("j")
    expect(drawer).to_contain_text(ids[1])
    assert page.url.endswith("order=oldest"), "the list is still the page"
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    expect(page.locator(f'tr[data-id="{ids[1]}"] a.row-link')).to_be_focused()
    page.get_by_role("button", name=f"Preview job {ids[2]}").click()
    expect(drawer).to_contain_text(ids[2])
    expect(drawer).to_be_focused()
    view.check_width(NARROWEST)
    view.check_accessible()
    drawer.get_by_role("button", name="Close the preview").click()
    expect(drawer).to_be_hidden()
    page.keyboard.press("Enter")
    expect(drawer).to_contain_text(ids[2])
    drawer.get_by_role("link", name="Open the job").click()
    expect(page).to_have_url(re.compile(f"/ui/jobs/{ids[2]}$"))


def test_the_current_row_stays_current_when_the_list_is_read_again(view: View, api: httpx.Client) -> None:
    ids = submitted(api, "current", 2)
    page = view.page
    open_list(view, "/ui/jobs?filter=topic:current")
    for _ in ids:
        page.keyboard.press("j")
    expect(page.locator("tr.is-current")).to_have_attribute("data-id", ids[0])
    (newest,) = submitted(api, "current")
    expect(page.locator("tr[data-id]").first).to_have_attribute("data-id", newest)
    expect(page.locator("tr.is-current")).to_have_attribute("data-id", ids[0])
    page.keyboard.press("k")
    expect(page.locator("tr.is-current")).to_have_attribute("data-id", ids[1])


def test_keys_redrive_and_cancel_the_row(view: View, api: httpx.Client) -> None:
    (dead,) = submitted(api, "keys")
    died(api, "keys")
    page = view.page
    open_list(view, "/ui/jobs?filter=topic:keys")
    page.keyboard.press("j")
    page.keyboard.press("r")
    expect(page.locator("#flash")).to_contain_text("1 job redriven")
    expect(page.locator(f'tr[data-id="{dead}"] .state')).to_have_text("pending")
    wait_for_scripts(view)
    page.keyboard.press("j")
    page.keyboard.press("Space")
    expect(page.locator("#preview-status")).to_have_text("Preview: keys, pending")
    page.keyboard.press("c")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Cancel this job")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert api.get(f"/v1/jobs/{dead}").json()["state"] == "pending"


def test_a_key_opens_the_form_that_pauses_a_topic(view: View, api: httpx.Client) -> None:
    submitted(api, "pausing")
    view.open("/ui/topics/pausing")
    view.page.keyboard.press("p")
    expect(view.page.get_by_label("Reason")).to_be_focused()


def test_a_discarded_job_can_be_brought_back_for_ten_seconds(view: View, api: httpx.Client) -> None:
    ids = submitted(api, "undone", 2)
    died(api, "undone")
    page = view.page
    page.clock.install()
    for job, undone in zip(ids, (True, False), strict=True):
        view.open(f"/ui/jobs/{job}")
        page.get_by_role("button", name="Discard").click()
        page.get_by_role("dialog").get_by_role("button", name="Discard").click()
        page.wait_for_url("**/ui/jobs")
        toast = page.locator("#toasts")
        expect(toast).to_contain_text("The job is discarded in 10 seconds")
        view.open("/ui/workers")  # it waits on other pages as well
        expect(toast).to_contain_text("The job is discarded in 10 seconds")
        if undone:
            toast.get_by_role("button", name="Undo").click()
            expect(toast).to_contain_text("Nothing was deleted")
        assert api.get(f"/v1/jobs/{job}").status_code == 200
        page.clock.fast_forward((UNDO_S + 1) * 1000)
        if not undone:
            expect(toast).to_contain_text("1 job discarded")
            expect(page).to_have_url(re.compile("/ui/workers$"))
    assert [api.get(f"/v1/jobs/{job}").status_code for job in ids] == [200, 404]


def test_a_deleted_schedule_can_be_brought_back(view: View, api: httpx.Client) -> None:
    spec = {"topic": "reports", "timing": {"cron": {"expression": "0 3 * * *", "zone": "UTC"}}}
    done(api.put("/v1/schedules/kept", json={"spec": spec}))
    page = view.page
    page.clock.install()
    view.open("/ui/schedules/kept")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.wait_for_url("**/ui/schedules")
    page.locator("#toasts").get_by_role("button", name="Undo").click()
    page.clock.fast_forward((UNDO_S + 1) * 1000)
    view.open("/ui/schedules/kept")
    expect(page.get_by_role("heading", level=1)).to_have_text("kept")
