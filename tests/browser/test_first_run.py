"""The first minutes: an empty server, the first worker, the first job; and a form that another site sends."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import viewing
from tests.browser.seed import done
from tests.support import http_clients
from tests.support.database import Server
from tests.support.server import LoggedProcess, ServerProcess, clean_environ
from tests.support.wire import served

HEADGATE = (sys.executable, "-m", "headgate.cli")
SOON_MS = 30_000


@pytest.fixture(scope="module")
def server(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server in dev mode on which nothing has run."""
    with served(postgres, template, tmp_path_factory.mktemp("first"), "--http-port", "0") as (started, _):
        yield started


@pytest.fixture(scope="module")
def dev_url(server: ServerProcess) -> str:
    return server.http_url


@pytest.fixture
def other_site(dev_url: str) -> Iterator[str]:
    """A site that sends a form to the dashboard as soon as it is opened."""
    body = f"""<!doctype html><title>Other</title>
<form method=post action="{dev_url}/ui/access/keys"><input name=name value=forged><input name=scopes value=admin></form>
<script>document.forms[0].submit()</script>""".encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            del args

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="other site")
    thread.start()
    yield f"http://localhost:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_page_comes_alive_with_the_first_worker_and_job(
    browser: Browser, server: ServerProcess, tmp_path: Path
) -> None:
    """With the code and the commands that the page shows."""
    environ = {**clean_environ(), "HEADGATE_URL": server.address}
    with viewing(browser, server.http_url) as view:
        page = view.page
        view.open("/")
        steps = page.locator("#steps")
        for text in ("waiting for the first worker", "waiting for the first job", "nothing has completed yet"):
            expect(steps).to_contain_text(text)
        view.check_accessible()
        code, run, submit = steps.locator("pre").all_inner_texts()
        assert run.strip() == "headgate worker app:hg --reload"
        assert submit.strip() == """headgate submit greet '{"name": "Ada"}' --wait 30s"""
        (tmp_path / "app.py").write_text(code)
        worker = LoggedProcess("app", [*HEADGATE, "worker", "app:hg"], folder=tmp_path, environ=environ)
        try:
            expect(steps).to_contain_text("1 worker connected", timeout=SOON_MS)
            arguments = ["submit", "greet", '{"name": "Ada"}', "--wait", "30s"]
            answer = subprocess.run(
                [*HEADGATE, *arguments], env=environ, capture_output=True, timeout=60, text=True, check=False
            )
            assert "Hello, Ada!" in answer.stdout, answer.stderr
            for text in ("1 job arrived", "1 job completed", "It works."):
                expect(steps).to_contain_text(text, timeout=SOON_MS)
        finally:
            worker.kill()
        steps.get_by_role("link", name="The overview").click()
        expect(page.locator("#overview-topics")).to_contain_text("greet")


def test_a_form_that_another_site_sends_changes_nothing(browser: Browser, dev_url: str, other_site: str) -> None:
    with viewing(browser, dev_url) as view, http_clients.client(base_url=dev_url) as api:
        view.open("/ui")
        view.expected.append("403")
        view.page.goto(other_site)
        view.page.wait_for_url("**/ui/access/keys")
        assert "comes from another site" in view.page.inner_text("main")
        assert [one["name"] for one in api.get("/v1/keys").json()["keys"]] == []


def test_pages_can_be_read_and_used_without_scripts(browser: Browser, dev_url: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    try:
        page.goto(f"{dev_url}/ui/access")
        page.fill("#name", "without scripts")
        page.get_by_role("button", name="Create the key").click()
        expect(page.locator("main")).to_contain_text("shown once")
        page.get_by_role("link", name="I have copied it").click()
        page.get_by_role("button", name="Revoke").first.click()
        expect(page.locator("h1")).to_have_text("Please confirm")
        page.get_by_role("button", name="Revoke").click()
        expect(page.locator("#flash")).to_contain_text("is revoked")
    finally:
        context.close()


def test_an_action_asks_in_a_dialog_and_answers_with_a_message(browser: Browser, dev_url: str) -> None:
    with viewing(browser, dev_url) as view, http_clients.client(base_url=dev_url) as api:
        done(api.post("/v1/keys", json={"name": "asked", "scopes": ["read"]}))
        page = view.page
        view.open("/ui/access")
        row = page.locator("tr", has_text="asked")
        row.get_by_role("button", name="Revoke").click()
        dialog = page.locator("dialog#confirm")
        expect(dialog).to_contain_text('Revoke the key "asked"?')
        view.check_accessible()
        dialog.get_by_role("button", name="Go back").click()
        expect(row).to_have_count(1)
        row.get_by_role("button", name="Revoke").click()
        dialog.get_by_role("button", name="Revoke").click()
        expect(page.locator("#toasts, #flash")).to_contain_text(["is revoked"])
        expect(row).to_have_count(0)
