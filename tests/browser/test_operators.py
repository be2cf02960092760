"""What an operator does: pause a topic and undo it, edit a schedule, see a worker die, stop one, rotate a secret."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Route, expect

from tests.browser.conftest import FRAMES, NARROWEST, WIDE, viewing
from tests.support import http_clients
from tests.support.database import Server
from tests.support.server import ServerProcess
from tests.support.wire import served
from tests.support.workers import WorkerProcess

SOON_MS = 30_000
"""A machine may stall; what is promised in seconds is measured elsewhere."""


@pytest.fixture(scope="module")
def server(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server in dev mode."""
    with served(postgres, template, tmp_path_factory.mktemp("operators"), "--http-port", "0") as (started, _):
        yield started


@pytest.fixture(scope="module")
def api(server: ServerProcess) -> Iterator[httpx.Client]:
    """Its REST API."""
    with http_clients.client(base_url=server.http_url) as client:
        yield client


def test_a_topic_is_paused_with_a_reason_and_the_pause_is_undone(
    browser: Browser, server: ServerProcess, api: httpx.Client
) -> None:
    api.post("/v1/jobs", json={"topic": "mail", "payload": {}})
    with viewing(browser, server.http_url) as view:
        page = view.page
        view.open("/ui/topics/mail")
        page.get_by_text("Pause…").click()
        page.get_by_label("Reason").fill("bank outage")
        view.check_accessible()
        page.get_by_role("button", name="Pause", exact=True).click()
        note = page.locator("#topic-status .note.warn").first
        expect(note).to_contain_text("bank outage", timeout=SOON_MS)
        expect(page.get_by_role("button", name="Resume")).to_be_visible()
        page.locator("#toasts").get_by_role("button", name="Undo").click()
        expect(page.locator("#topic-status").get_by_text("bank outage")).to_have_count(0, timeout=SOON_MS)
        expect(page.get_by_text("Pause…")).to_be_visible()
    assert [one["verb"] for one in api.get("/v1/audit?target=topic mail").json()["entries"]] == ["resume", "pause"]


def test_a_button_stays_what_it_is_between_press_and_release(
    browser: Browser, server: ServerProcess, api: httpx.Client
) -> None:
    """An answer that arrives meanwhile would replace the button, and the click would be lost or do something else."""
    api.post("/v1/jobs", json={"topic": "pressed", "payload": {}})
    with viewing(browser, server.http_url) as view:
        page = view.page
        view.open("/ui/topics/pressed")
        page.locator('#live-state[data-state="live"]').wait_for(timeout=SOON_MS)
        held: list[Route] = []
        page.route("**/ui/topics/pressed*", lambda route: held.append(route))
        with page.expect_request("**/ui/topics/pressed*"):
            assert api.post("/v1/pause", json={"target": {"topic": "pressed"}, "reason": "by another"}).is_success
        pause = page.get_by_text("Pause…")
        pause.hover()
        page.mouse.down()
        with page.expect_response("**/ui/topics/pressed*"):
            held.pop().continue_()
        page.unroute_all()
        page.evaluate(FRAMES)
        page.mouse.up()
        expect(page.get_by_label("Reason")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Resume")).to_be_visible(timeout=SOON_MS)


def test_a_schedule_is_edited_and_its_expression_is_explained_while_it_is_typed(
    browser: Browser, server: ServerProcess, api: httpx.Client
) -> None:
    spec = {"topic": "reports", "timing": {"cron": {"expression": "0 3 * * *", "zone": "Europe/Berlin"}}}
    assert api.put("/v1/schedules/nightly", json={"spec": spec}).is_success
    with viewing(browser, server.http_url) as view:
        page = view.page
        view.open("/ui/schedules/nightly")
        page.get_by_role("link", name="Edit").click()
        expect(page.locator("#explained")).to_contain_text("at 03:00, every day (Europe/Berlin)")
        page.get_by_label("Cron expression").fill("*/15 9-17 * * MON-FRI")
        words = "every 15 minutes, from 09:00 to 17:45, Monday to Friday"
        expect(page.locator("#explained")).to_contain_text(words, timeout=SOON_MS)
        page.get_by_label("Cron expression").fill("61 * * * *")
        expect(page.locator("#explained")).to_contain_text("is not in 0..59", timeout=SOON_MS)
        view.expected.append("400")
        page.get_by_role("button", name="Save").click()
        expect(page.locator(".field.invalid")).to_contain_text("61", timeout=SOON_MS)
        page.get_by_label("Cron expression").fill("30 4 * * *")
        page.get_by_role("button", name="Save").click()
        page.wait_for_url("**/ui/schedules/nightly")
        expect(page.locator("#schedule")).to_contain_text("at 04:30, every day (Europe/Berlin)")


def test_a_worker_that_dies_is_reported_without_a_reload(
    browser: Browser, server: ServerProcess, api: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("worker")
    with WorkerProcess(server.address, folder=folder) as worker, viewing(browser, server.http_url) as view:
        view.open("/ui/workers")
        (name,) = [one["worker"] for one in api.get("/v1/workers").json()["workers"]]
        row = view.page.locator("tr", has_text=name)
        expect(row).to_contain_text("stream open", timeout=SOON_MS)
        expect(row).to_contain_text("headgate-python")
        worker.kill()
        lost = view.page.locator(".note.error", has_text=name)
        expect(lost).to_contain_text("the connection was lost", timeout=SOON_MS)
        expect(row).to_have_count(0)
        view.check_accessible()


def test_a_worker_is_stopped_with_a_reason_after_a_question(
    browser: Browser, server: ServerProcess, api: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("stopped")
    path = b64encode(str(folder / "go").encode()).decode()
    assert api.post("/v1/jobs", json={"topic": "held", "payload_base64": path}).is_success
    with WorkerProcess(server.address, folder=folder) as worker, viewing(browser, server.http_url) as view:
        page = view.page
        (name,) = [one["worker"] for one in api.get("/v1/workers").json()["workers"]]
        view.open("/ui/workers")
        row = page.locator("tr", has_text=name)
        row.get_by_text("Stop…").click()
        row.get_by_role("textbox", name="Reason").fill("memory leak")
        view.check_accessible()
        row.get_by_role("button", name="Stop", exact=True).click()
        dialog = page.locator("dialog#confirm")
        expect(dialog).to_contain_text(f"Stop the worker {name}?", timeout=SOON_MS)
        view.check_accessible()
        dialog.get_by_role("button", name="Go back").click()
        assert "stop" not in api.get("/v1/workers").json()["workers"][0]
        row.get_by_text("Stop…").click()  # a click elsewhere has closed it
        row.get_by_role("textbox", name="Reason").fill("memory leak")
        row.get_by_role("button", name="Stop", exact=True).click()
        dialog.get_by_role("button", name="Stop").click()
        expect(row).to_contain_text("stopping", timeout=SOON_MS)
        expect(row).to_contain_text("memory leak")
        expect(row.get_by_text("Stop…")).to_have_count(0)
        for size in (NARROWEST, WIDE):
            view.check_width(size)
        view.check_accessible()
        view.open(f"/ui/workers/{name}")
        expect(page.locator("#worker")).to_contain_text("“memory leak”")
        (folder / "go").touch()
        expect(page.locator("#worker")).to_contain_text("is not connected any more", timeout=SOON_MS)
        assert worker.wait() == 0
    assert [one["reason"] for one in api.get("/v1/audit?verb=stop_worker").json()["entries"]] == ["memory leak"]


def test_a_secret_is_rotated_and_shown_once(browser: Browser, server: ServerProcess, api: httpx.Client) -> None:
    made = api.post("/v1/webhooks", json={"url": "https://93.184.216.34/hook", "events": ["job.dead"]})
    assert made.is_success, made.text
    with viewing(browser, server.http_url) as view:
        page = view.page
        view.open("/ui/webhooks")
        page.locator("a.row-link").first.click()
        page.get_by_role("button", name="Rotate the secret").click()
        page.locator("dialog#confirm").get_by_role("button", name="Rotate the secret").click()
        secret = page.locator("[data-secret] code")
        expect(secret).to_contain_text("whsec_", timeout=SOON_MS)
        view.check_accessible()
        text = secret.inner_text()
        page.get_by_role("link", name="Done").click()
        expect(page.locator("main")).to_contain_text("2 secrets")
        assert text not in page.content()


def test_the_graph_of_a_batch_is_reached_with_the_keyboard(
    browser: Browser, server: ServerProcess, api: httpx.Client
) -> None:
    batch = api.post("/v1/batches", json={"name": "month end"}).json()["id"]
    first = api.post("/v1/jobs", json={"topic": "extract", "payload": {}, "batch": batch}).json()["id"]
    api.post("/v1/jobs", json={"topic": "load", "payload": {}, "batch": batch, "depends_on": [first]})
    with viewing(browser, server.http_url) as view:
        view.open(f"/ui/batches/{batch}")
        box = view.page.locator("svg.graph a").first
        box.focus()
        expect(box).to_be_focused()
        view.check_accessible()
        view.page.keyboard.press("Enter")
        view.page.wait_for_url(f"**/ui/jobs/{first}")


def test_the_next_runs_are_shown_in_the_zone_of_the_reader(
    browser: Browser, server: ServerProcess, api: httpx.Client
) -> None:
    spec = {"topic": "reports", "timing": {"cron": {"expression": "30 3 * * *", "zone": "America/New_York"}}}
    assert api.put("/v1/schedules/elsewhere", json={"spec": spec}).is_success
    for zone, heads in (
        ("Asia/Tokyo", ["In", "America/New_York", "Asia/Tokyo"]),
        ("America/New_York", ["In", "America/New_York"]),
    ):
        context = browser.new_context(timezone_id=zone)
        page = context.new_page()
        page.goto(f"{server.http_url}/ui/schedules/elsewhere")
        expect(page.locator("table.runs th:visible")).to_have_text(heads)
        times = page.locator("table.runs tbody tr").first.locator("td:visible")
        expect(times.nth(1)).to_have_text(re.compile(r" 03:30$"))
        if len(heads) == 3:
            expect(times.nth(2)).to_have_text(re.compile(r" (16:30|17:30)$"))  # with and without summer time
        context.close()
