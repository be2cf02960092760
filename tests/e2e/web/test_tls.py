"""The dashboard over TLS, and sessions that begin with a JWT."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from datetime import timedelta
from http.cookies import SimpleCookie
from pathlib import Path

import httpx
import pytest
import trustme

from tests.e2e.web.conftest import CSRF
from tests.support.dashboard import text_of
from tests.support.database import Server
from tests.support.jwts import AUDIENCE, ISSUER, claims, key_set, new_key, signed
from tests.support.server import ServerProcess
from tests.support.waiting import until
from tests.support.wire import served

ISSUED = new_key("one")


@pytest.fixture(scope="module")
def running(
    postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, Path]]:
    """A server that has a certificate and trusts one issuer."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    made = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    made.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    made.private_key_pem.write_to_path(str(folder / "key.pem"))
    (folder / "keys.json").write_bytes(key_set(ISSUED))
    issuer = {"issuer": ISSUER, "audience": AUDIENCE, "algorithms": ["ES256"], "keys_file": "keys.json", "skew": "0s"}
    (folder / "issuers.json").write_text(json.dumps({"issuers": [issuer]}))
    files = {"--jwt-issuers": "issuers.json", "--tls-cert": "cert.pem", "--tls-key": "key.pem"}
    args = [word for option, name in files.items() for word in (option, str(folder / name))]
    with served(postgres, template, folder, "--http-port", "0", *args, dev=False) as (server, _):
        yield server, folder


@pytest.fixture
def browser(running: tuple[ServerProcess, Path]) -> Iterator[httpx.Client]:
    server, folder = running
    address = httpx.URL(server.http_url).copy_with(scheme="https", host="localhost")
    trusted = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    with httpx.Client(base_url=address, verify=trusted, timeout=60, trust_env=False) as client:
        yield client


def login(browser: httpx.Client, token: str, *, scheme: str = "https") -> httpx.Response:
    """Sign in, as the form of the page does."""
    found = CSRF.search(browser.get("/ui/login").text)
    assert found is not None
    origin = f"{scheme}://{browser.base_url.netloc.decode()}"
    return browser.post(
        "/ui/login",
        data={"csrf": found[1] or found[2], "token": token, "next": "/ui"},
        headers={"origin": origin, "sec-fetch-site": "same-origin"},
    )


def cookies(answer: httpx.Response) -> SimpleCookie:
    found = SimpleCookie()
    for one in answer.headers.get_list("set-cookie"):
        found.load(one)
    return found


def test_over_tls_every_cookie_is_secure_and_those_that_count_are_bound_to_the_host(browser: httpx.Client) -> None:
    visitor = cookies(browser.get("/ui/login"))
    answer = login(browser, signed(ISSUED, claims()))
    assert answer.status_code == 303
    session = cookies(answer)
    assert list(visitor) == ["__Host-headgate_visitor"]
    assert list(session) == ["__Host-headgate"]
    for one in (*visitor.values(), *session.values()):
        assert (one["secure"], one["httponly"], one["samesite"].lower()) == (True, True, "strict")
        assert (one["path"], one["domain"]) == ("/", ""), "what the prefix demands"
    page = browser.get("/ui")
    assert page.status_code == 200
    assert "ana" in text_of(page)
    found = CSRF.search(page.text)
    assert found is not None
    own = {"origin": str(browser.base_url).rstrip("/"), "sec-fetch-site": "same-origin"}
    chosen = browser.post("/ui/preferences", data={"csrf": found[1] or found[2], "theme": "dark"}, headers=own)
    assert chosen.status_code == 303
    assert all(one["secure"] for one in cookies(chosen).values())


def test_over_tls_a_cookie_that_any_host_could_set_begins_nothing(browser: httpx.Client) -> None:
    answer = login(browser, signed(ISSUED, claims()))
    secret = cookies(answer)["__Host-headgate"].value
    browser.cookies.clear()
    browser.cookies.set("headgate_session", secret)
    assert browser.get("/ui").status_code == 303


def test_over_tls_a_form_of_plain_http_is_refused(browser: httpx.Client) -> None:
    answer = login(browser, signed(ISSUED, claims()), scheme="http")
    assert answer.status_code == 403
    assert "another origin" in text_of(answer)


def test_a_session_that_began_with_a_jwt_ends_with_it(browser: httpx.Client) -> None:
    expires = int(time.time()) + 3
    answer = login(browser, signed(ISSUED, claims(exp=expires)))
    assert answer.status_code == 303
    cookie = cookies(answer)["__Host-headgate"]
    assert int(cookie["max-age"]) <= 3
    secret = cookie.value
    assert browser.get("/ui").status_code in (200, 303)

    def has_ended() -> bool:
        browser.cookies.clear()  # the browser would forget it; who has copied it would not
        browser.cookies.set("__Host-headgate", secret)
        return browser.get("/ui").status_code == 303

    until(has_ended, "the session has ended", within=timedelta(seconds=8))
    assert time.time() >= expires, "not before the token"


@pytest.mark.parametrize("scope", ["openid submit", "openid"])
def test_a_jwt_that_may_not_read_begins_no_session(browser: httpx.Client, scope: str) -> None:
    answer = login(browser, signed(ISSUED, claims(scope=scope)))
    assert answer.status_code in (401, 403)
    assert "__Host-headgate" not in cookies(answer)


def test_a_jwt_of_another_key_begins_no_session(browser: httpx.Client) -> None:
    answer = login(browser, signed(new_key("two"), claims()))
    assert answer.status_code == 401
    assert "__Host-headgate" not in cookies(answer)
