"""Changes that a page of another site makes a browser send, or that come without what only our pages have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import unescape

import httpx
import pytest

from tests.e2e.web.conftest import ADMIN, VIEWER, Browser, Sign
from tests.support.dashboard import text_of
from tests.support.database import Server
from tests.support.wire import served

CREATE = "/ui/access/keys"
FIELDS = {"name": "forged", "scopes": "read"}


def keys(api: httpx.Client) -> list[str]:
    return [one["name"] for one in api.get("/v1/keys").json()["keys"]]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example", "sec_fetch_site": "cross-site"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "none"},
    ],
    ids=lambda value: "-".join(value.values()),
)
def test_a_form_of_another_site_changes_nothing(sign: Sign, api: httpx.Client, headers: dict[str, str]) -> None:
    """Even with the right token: each of the two checks suffices."""
    browser = sign(ADMIN)
    answer = browser.submit(CREATE, FIELDS, **headers)
    assert answer.status_code == 403
    assert "send it from the dashboard" in text_of(answer)
    assert "forged" not in keys(api)


@pytest.mark.parametrize("token", ["", "0" * 40, "é"])
def test_a_form_without_the_token_changes_nothing(sign: Sign, api: httpx.Client, token: str) -> None:
    browser = sign(ADMIN)
    browser.token = token
    answer = browser.submit(CREATE, FIELDS)
    assert answer.status_code == 403
    assert "reload the page" in text_of(answer)
    assert "forged" not in keys(api)


def test_a_token_of_another_browser_changes_nothing(sign: Sign, api: httpx.Client) -> None:
    first, second = sign(ADMIN), sign(ADMIN)
    second.token = first.token
    assert second.submit(CREATE, FIELDS).status_code == 403
    assert "forged" not in keys(api)


def test_a_request_that_says_nothing_of_its_origin_changes_nothing(sign: Sign, api: httpx.Client) -> None:
    browser = sign(ADMIN)
    answer = browser.post(CREATE, data={"csrf": browser.token, **FIELDS})
    assert answer.status_code == 403
    assert "forged" not in keys(api)


def test_a_login_needs_a_token_as_well(visit: Callable[[], Browser]) -> None:
    """Else another site could sign a browser in as someone else."""
    browser = visit()
    browser.page("/ui/login")
    browser.token = ""
    assert browser.submit("/ui/login", {"token": VIEWER}).status_code == 403


def test_a_change_is_never_made_by_get(sign: Sign, api: httpx.Client) -> None:
    browser = sign(ADMIN)
    assert browser.get(f"{CREATE}?name=forged&scopes=read").status_code == 405
    assert "forged" not in keys(api)


def test_a_viewer_cannot_act_even_if_the_form_is_made_by_hand(sign: Sign, api: httpx.Client) -> None:
    answer = sign(VIEWER).submit(CREATE, FIELDS)
    assert answer.status_code == 403
    assert 'this needs the scope "admin"' in text_of(answer)
    assert "forged" not in keys(api)


def test_a_body_that_is_no_form_is_refused(sign: Sign) -> None:
    browser = sign(ADMIN)
    own = {"origin": str(browser.base_url).rstrip("/"), "x-csrf-token": browser.token}
    assert browser.post(CREATE, json=FIELDS, headers=own).status_code == 415


def test_an_action_that_asks_is_not_done_before_the_answer(sign: Sign, api: httpx.Client) -> None:
    key = api.post("/v1/keys", json={"name": "kept", "scopes": ["read"]}).json()
    browser = sign(ADMIN)
    path, asked = f"/ui/access/keys/{key['info']['id']}/revoke", {"question": "Revoke <it>?", "reason": "a & b"}
    page = browser.submit(path, asked)
    assert page.status_code == 200
    assert "Revoke &lt;it&gt;?" in page.text
    assert 'name="reason" value="a &amp; b"' in page.text
    assert "kept" in keys(api)
    assert browser.submit(path, {**asked, "confirmed": "1"}).status_code == 303
    assert "kept" not in keys(api)


@pytest.fixture(scope="module")
def dev(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser at a server in dev mode, which has no login."""
    with served(postgres, template, tmp_path_factory.mktemp("dev"), "--http-port", "0") as (server, _):
        browser = Browser(server.http_url)
        yield browser
        browser.close()


@pytest.mark.parametrize("path", ["/ui", "/ui/topics", "/v1/status", "/v1/jobs", "/v1/keys"])
def test_dev_mode_answers_to_names_of_this_machine_only(dev: Browser, path: str) -> None:
    """There is no login: a name of another site that resolves to 127.0.0.1 would be its administrator."""
    port = dev.base_url.port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "[::1]"):
        assert dev.get(path, headers={"host": host}).status_code == 200, host
    for host in (f"evil.example:{port}", "localhost.evil.example", f"127.0.0.1.nip.io:{port}"):
        refused = dev.get(path, headers={"host": host})
        assert refused.status_code == 403, host
        assert "localhost and addresses only" in unescape(refused.text)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"host": "evil.example"},
    ],
    ids=lambda value: "-".join(value.values()),
)
def test_a_page_of_another_site_changes_nothing_over_the_api_of_dev_mode(dev: Browser, headers: dict[str, str]) -> None:
    """A form or `fetch` without a body needs no permission of the other origin, and there is no token to lack."""
    target = {"target": {"tenant": True}}
    for method, path in (("POST", "/v1/pause"), ("PUT", "/v1/schedules/forged"), ("PATCH", "/v1/topics/forged")):
        refused = dev.request(method, path, json=target, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied"), path
    assert dev.post("/v1/retention/run", headers=headers).status_code == 403
    assert not [one for one in dev.get("/v1/status").json()["pauses"] if one["paused"]]


def test_programs_and_own_pages_use_the_api_of_dev_mode(dev: Browser) -> None:
    own = {"origin": str(dev.base_url).rstrip("/"), "sec-fetch-site": "same-origin"}
    for headers in ({}, own):
        assert dev.post("/v1/jobs", json={"topic": "own", "payload": {}}, headers=headers).status_code == 201
