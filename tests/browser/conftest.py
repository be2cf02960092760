"""A real browser on a real server. `make browser` runs these tests; `make test` does not.

One browser for the run, one server for each module. A page collects what a person would not see: errors on the console,
reports of the content security policy, dialogs. A test fails if there are any at its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Response, expect, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from tests.browser.seed import Seed, seeded
from tests.support import http_clients
from tests.support.database import Server
from tests.support.wire import served
from tools.chromium import found

AXE = next(Path(axe_playwright_python.__file__).parent.rglob("axe.min.js")).read_text()
AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
WIDE, NARROW, NARROWEST = (1280, 800), (375, 740), (320, 640)
ADMIN, VIEWER = "token-admin-xxxxxxxxxxxx", "token-viewer-xxxxxxxxxxxx"
TOKENS = {
    ADMIN: {"tenant": "shop", "name": "ana", "scopes": ["admin"]},
    VIEWER: {"tenant": "shop", "name": "vera", "scopes": ["read"]},
}
LIMIT_MS = 20_000
"""A machine may stall; what is promised in seconds is measured where it is promised."""
FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""What the page was about to do has been done."""
PLAIN = ("--http-port", "0", "--name", "headgate-1")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-first-run",
)
WATCH = """
window.__reports = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.__reports.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`);
});
"""


@dataclass(eq=False)
class View:
    """A page of the browser, and what it has complained about."""

    page: Page
    url: str
    problems: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    """Parts of complaints that a test provokes."""

    def open(self, path: str) -> Response | None:
        """Go to a page of the dashboard."""
        answer = self.page.goto(self.url + path)
        self.page.wait_for_load_state("load")
        return answer

    def login(self, token: str) -> None:
        """Sign in with a token."""
        self.open("/ui/login")
        self.page.get_by_label("Key or token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url("**/ui")

    def check(self) -> None:
        """Fail if the page has complained."""
        reports = self.page.evaluate("window.__reports || []")
        found = [one for one in [*self.problems, *reports] if not any(part in one for part in self.expected)]
        assert found == []

    def check_accessible(self) -> None:
        """Fail unless axe finds nothing to improve."""
        reports, problems = self.page.evaluate("window.__reports"), list(self.problems)
        self.page.evaluate(AXE)
        results = self.page.evaluate("(tags) => axe.run(document, {runOnly: tags})", AXE_TAGS)
        # axe copies elements with their style attributes, which the policy forbids it as well.
        self.page.evaluate("(reports) => { window.__reports = reports; }", reports)
        self.problems[len(problems) :] = [one for one in self.problems[len(problems) :] if "inline style" not in one]
        found = [
            f"{one['id']}: {one['help']}: {node['target']} {node['failureSummary']}"
            for one in results["violations"]
            for node in one["nodes"][:3]
        ]
        assert found == [], "\n".join(found)

    def check_width(self, size: tuple[int, int]) -> None:
        """Fail if the page is wider than the window."""
        self.page.set_viewport_size({"width": size[0], "height": size[1]})
        fits = "() => document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        with suppress(PlaywrightTimeout):  # charts follow the window a moment later
            self.page.wait_for_function(fits, timeout=3_000)
        wide = self.page.evaluate(
            """() => {
              const most = document.documentElement.clientWidth;
              if (document.documentElement.scrollWidth <= most) return [];
              return [...document.querySelectorAll("body *")]
                .filter((one) => one.getBoundingClientRect().right > most + 1)
                .slice(0, 5).map((one) => `${one.nodeName}.${one.className} ${one.getBoundingClientRect().right}`);
            }"""
        )
        assert wide == [], f"wider than {size[0]} px: {wide}"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a screen."""
    path = found()
    assert path is not None, "there is no chromium; `make browser` installs it"
    expect.set_options(timeout=LIMIT_MS)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture(scope="module")
def dev_url(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server in dev mode with an empty database: the address of its HTTP port."""
    with served(postgres, template, tmp_path_factory.mktemp("browser"), *PLAIN) as (server, _):
        yield server.http_url


@pytest.fixture(scope="module")
def closed_url(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that asks for a login, with an empty database."""
    folder = tmp_path_factory.mktemp("closed")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    with served(postgres, template, folder, *PLAIN, "--tokens", str(tokens), dev=False) as (server, _):
        yield server.http_url


@pytest.fixture(scope="module")
def seed(dev_url: str) -> Seed:
    """The same server with something of everything."""
    with http_clients.client(base_url=dev_url) as api:
        return seeded(api)


@contextmanager
def viewing(browser: Browser, url: str, *, theme: Any = "light", size: tuple[int, int] = WIDE) -> Iterator[View]:
    """A fresh browser profile with one page."""
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce"
    )
    context.set_default_timeout(LIMIT_MS)
    context.add_init_script(WATCH)
    view = View(context.new_page(), url)

    def on_console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            view.problems.append(f"console {message.type}: {message.text}")

    def on_dialog(dialog: Dialog) -> None:
        view.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    view.page.on("console", on_console)
    view.page.on("dialog", on_dialog)
    view.page.on("pageerror", lambda error: view.problems.append(f"script: {error}"))
    try:
        yield view
        view.check()
    finally:
        context.close()
