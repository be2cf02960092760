"""One server for these tests, and browsers without a screen: cookies, forms with their token, the right headers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

import httpx
import pytest

from tests.support import http_clients
from tests.support.database import Server
from tests.support.server import ServerProcess
from tests.support.wire import served

ADMIN, OPERATOR, VIEWER, OTHER, WORKER, SYSTEM = (
    f"token-{name}-xxxxxxxxxxxx" for name in ("admin", "operator", "viewer", "other", "worker", "system")
)
TOKENS: dict[str, dict[str, object]] = {
    ADMIN: {"tenant": "own", "name": "ana", "scopes": ["admin"]},
    OPERATOR: {"tenant": "own", "name": "otto", "scopes": ["read", "operate", "submit"]},
    VIEWER: {"tenant": "own", "name": "vera", "scopes": ["read"]},
    OTHER: {"tenant": "other", "name": "olga", "scopes": ["admin"]},
    WORKER: {"tenant": "own", "name": "will", "scopes": ["work"]},
    SYSTEM: {"name": "sys", "scopes": ["system"]},
}
CSRF = re.compile(r'<meta name="csrf" content="([0-9a-f]+)">|name="csrf" value="([0-9a-f]+)"')
Sign: TypeAlias = Callable[[str], "Browser"]


class Browser(httpx.Client):
    """A client that behaves as a browser does; `post` sends a form with the token of the last page."""

    def __init__(self, url: str) -> None:
        super().__init__(base_url=url, **http_clients.USUAL)
        self.token = ""

    def page(self, path: str, **more: object) -> httpx.Response:
        """A page, and its token."""
        answer = self.get(path, **more)  # type: ignore[arg-type]
        found = CSRF.search(answer.text)
        if found is not None:
            self.token = found[1] or found[2]
        return answer

    def submit(self, path: str, fields: dict[str, str] | None = None, **headers: str) -> httpx.Response:
        """A form of ours."""
        own = {"origin": str(self.base_url).rstrip("/"), "sec-fetch-site": "same-origin"}
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.post(path, data={"csrf": self.token, **(fields or {})}, headers={**own, **given})

    def login(self, token: str, *, to: str = "") -> httpx.Response:
        """Sign in."""
        self.page("/ui/login")
        answer = self.submit("/ui/login", {"token": token, "next": to})
        if answer.status_code == 303:
            self.page("/ui/preferences")  # the token of the session
        return answer


@pytest.fixture(scope="package")
def running(
    postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, str]]:
    """One server for the folder, with tokens of two tenants; and the URL of its database."""
    folder = tmp_path_factory.mktemp("web")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    with served(postgres, template, folder, "--http-port", "0", "--tokens", str(tokens), dev=False) as both:
        yield both


@pytest.fixture
def visit(running: tuple[ServerProcess, str]) -> Iterator[Callable[[], Browser]]:
    """Makes browsers that are not signed in."""
    made: list[Browser] = []

    def browser() -> Browser:
        made.append(Browser(running[0].http_url))
        return made[-1]

    yield browser
    for one in made:
        one.close()


@pytest.fixture
def sign(visit: Callable[[], Browser]) -> Sign:
    """Makes a browser that is signed in with a token."""

    def signed(token: str) -> Browser:
        browser = visit()
        assert browser.login(token).status_code == 303
        return browser

    return signed


@pytest.fixture
def api(running: tuple[ServerProcess, str]) -> Iterator[httpx.Client]:
    """The REST API as the administrator of the tenant."""
    headers = {"authorization": f"Bearer {ADMIN}"}
    with http_clients.client(base_url=running[0].http_url, headers=headers) as client:
        yield client
