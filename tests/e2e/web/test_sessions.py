"""Browser sessions: login, logout, the end of a credential, cookies, and what a login never does."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import asyncpg
import httpx
import pytest

from headgate.web.headers import CONTENT_SECURITY_POLICY
from tests.e2e.web.conftest import ADMIN, OTHER, SYSTEM, VIEWER, WORKER, Browser, Sign
from tests.support.dashboard import text_of
from tests.support.server import ServerProcess
from tests.support.waiting import until

Visit = Callable[[], Browser]
SESSION = re.compile(r"/ui/access/sessions/([a-z2-7]{10})/revoke")


def test_a_page_without_a_session_leads_to_the_login_and_back(visit: Visit) -> None:
    browser = visit()
    answer = browser.get("/ui/preferences")
    assert answer.status_code == 200  # needs no login
    answer = browser.get("/ui?since=1h")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/login?next=%2Fui%3Fsince%3D1h")
    answer = browser.login(VIEWER, to="/ui?since=1h")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui?since=1h")
    assert "vera" in text_of(browser.page("/ui"))


@pytest.mark.parametrize("token", ["wrong", "", "hg_aaaaaaaa_" + "b" * 40, "x" * 9_000])
def test_a_wrong_token_says_so_and_begins_no_session(visit: Visit, token: str) -> None:
    browser = visit()
    answer = browser.login(token)
    assert answer.status_code == 401
    assert re.search(r"(token is not valid|token is required)", text_of(answer))
    assert "headgate_session" not in browser.cookies
    assert token == "" or token not in answer.text


def test_a_token_that_may_not_read_is_told_so(visit: Visit) -> None:
    answer = visit().login(WORKER)
    assert answer.status_code == 403
    assert 'the scope "read"' in text_of(answer)


def test_the_cookie_cannot_be_read_by_scripts_nor_sent_by_other_sites(visit: Visit) -> None:
    browser = visit()
    flags = browser.login(VIEWER).headers["set-cookie"].lower()
    assert "httponly" in flags
    assert "samesite=strict" in flags
    assert "path=/" in flags
    assert "domain" not in flags
    assert "max-age=43200" in flags
    for cookie in browser.page("/ui").headers.get_list("set-cookie"):
        assert "httponly" in cookie.lower()
        assert "samesite=strict" in cookie.lower()


def test_behind_tls_the_cookie_is_secure_and_bound_to_the_host(visit: Visit) -> None:
    browser = visit()
    browser.page("/ui/login")
    host = browser.base_url.netloc.decode()
    answer = browser.submit("/ui/login", {"token": VIEWER}, origin=f"https://{host}")
    flags = answer.headers["set-cookie"]
    assert flags.startswith("__Host-headgate=")
    assert "Secure" in flags


def test_a_login_makes_a_new_session_and_ends_the_one_before(visit: Visit, running: tuple[ServerProcess, str]) -> None:
    browser = visit()
    browser.cookies.set("headgate_session", "chosen-by-an-attacker")
    browser.cookies.set("headgate_visitor", "chosen-as-well")
    assert browser.login(VIEWER).status_code == 303
    first = [one.value for one in browser.cookies.jar if one.name == "headgate_session"][-1]
    assert first != "chosen-by-an-attacker"
    browser.cookies.clear()
    browser.cookies.set("headgate_session", str(first))
    browser.page("/ui/preferences")
    browser.submit("/ui/login", {"token": VIEWER})
    old = Browser(running[0].http_url)
    old.cookies.set("headgate_session", str(first))
    until(lambda: old.get("/ui").status_code == 303, "the first session has ended", within=timedelta(seconds=10))
    old.close()


def test_a_logout_ends_the_session_on_the_server(visit: Visit, sign: Sign) -> None:
    browser = sign(VIEWER)
    secret = [one.value for one in browser.cookies.jar if one.name == "headgate_session"][-1]
    answer = browser.submit("/ui/logout")
    assert answer.status_code == 303
    assert answer.headers["clear-site-data"] == '"cache"'
    thief = visit()
    thief.cookies.set("headgate_session", str(secret))
    assert thief.get("/ui").status_code == 303


def test_a_revoked_key_ends_its_sessions_within_five_seconds(visit: Visit, api: httpx.Client) -> None:
    key = api.post("/v1/keys", json={"name": "short", "scopes": ["read"]}).json()
    browser = visit()
    assert browser.login(key["key"]).status_code == 303
    assert browser.get("/ui").status_code == 200
    assert api.post(f"/v1/keys/{key['info']['id']}/revoke", json={}).status_code == 200
    until(lambda: browser.get("/ui").status_code == 303, "the session has ended", within=timedelta(seconds=5))


async def test_only_a_digest_of_the_secret_is_stored(sign: Sign, running: tuple[ServerProcess, str]) -> None:
    browser = sign(VIEWER)
    secret = next(one.value for one in browser.cookies.jar if one.name == "headgate_session")
    db = await asyncpg.connect(running[1])
    try:
        rows = await db.fetch("SELECT s::text FROM headgate.web_sessions s")
    finally:
        await db.close()
    assert rows
    assert not any(str(secret) in row[0] or VIEWER in row[0] for row in rows)


def test_a_session_is_no_credential_of_the_api_and_a_token_none_of_the_dashboard(visit: Visit, sign: Sign) -> None:
    assert sign(ADMIN).get("/v1/status").status_code == 401
    assert visit().get("/ui", headers={"authorization": f"Bearer {ADMIN}"}).status_code == 303


@pytest.mark.parametrize(
    "goal",
    [
        "https://evil.example/ui",
        "//evil.example/ui",
        "/\\evil.example",
        "\\\\evil.example",
        "/ui\\..\\..//evil.example",
        "javascript:alert(1)",
        "/v1/jobs",
        "/ui/login",
        "/ui\r\nSet-Cookie: a=b",
        "/ui/../v1/status",
        "/ui/%2e%2e/v1/status",
        "/ui/.%2E//evil.example",
        "ui",
    ],
)
def test_a_login_leads_to_pages_of_the_dashboard_only(visit: Visit, goal: str) -> None:
    answer = visit().login(VIEWER, to=goal)
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui")


def test_every_answer_has_the_security_headers(visit: Visit, sign: Sign) -> None:
    browser, stranger = sign(VIEWER), visit()
    style = re.search(r'href="(/ui/static/[^"]+\.css)"', browser.page("/ui").text)
    assert style is not None
    answers = [
        *(browser.get(path) for path in ("/", "/ui", "/ui/nope", "/ui/access", style[1])),
        stranger.get("/ui"),
        stranger.get("/ui/login"),
        stranger.post("/ui/login"),
        browser.get("/ui/preferences", headers={"hx-request": "true"}),
    ]
    assert {one.status_code for one in answers} >= {200, 303, 403, 404}
    for answer in answers:
        assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["x-frame-options"] == "DENY"


def test_pages_are_not_kept_by_browsers_and_files_are(sign: Sign) -> None:
    browser = sign(VIEWER)
    page = browser.page("/ui")
    assert page.headers["cache-control"] == "no-store"
    for path in ("/ui", "/ui/topics", "/ui/audit", "/ui/workers"):
        part = browser.get(path, headers={"hx-request": "true"})
        assert part.headers["cache-control"] == "no-store", path
        assert browser.get(path).headers["cache-control"] == "no-store", path
    style = re.search(r'href="(/ui/static/[^"]+\.css)"', page.text)
    assert style is not None
    file = browser.get(style[1])
    assert file.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert file.headers["content-encoding"] == "gzip"


def test_a_role_is_shown_and_its_menu_has_what_it_may_see(sign: Sign) -> None:
    admin, viewer, system = (sign(token).page("/ui").text for token in (ADMIN, VIEWER, SYSTEM))
    assert 'href="/ui/access"' in admin
    assert 'href="/ui/access"' not in viewer
    assert "You are signed in as a viewer" in viewer
    assert "all tenants" in system


def test_sessions_of_other_tenants_are_neither_listed_nor_revoked(sign: Sign) -> None:
    other = sign(OTHER)
    found = SESSION.search(other.page("/ui/access").text)
    assert found is not None
    admin = sign(ADMIN)
    assert found[1] not in admin.page("/ui/access").text
    answer = admin.submit(f"/ui/access/sessions/{found[1]}/revoke", {"confirmed": "1"})
    assert answer.status_code == 404
    assert other.get("/ui").status_code == 200


def test_a_revoked_session_ends_and_no_other_one(visit: Visit, sign: Sign, api: httpx.Client) -> None:
    key = api.post("/v1/keys", json={"name": "laptop", "scopes": ["read"]}).json()
    lost, kept, admin = visit(), visit(), sign(ADMIN)
    for browser, agent in ((lost, "lost-laptop"), (kept, "kept-phone")):
        browser.headers["user-agent"] = agent
        assert browser.login(key["key"]).status_code == 303
    listed = api.get("/v1/sessions").json()["sessions"]
    (session,) = (one["id"] for one in listed if one["agent"] == "lost-laptop")
    rows = [part for part in admin.page("/ui/access").text.split("<tr") if "lost-laptop" in part]
    assert {found[1] for row in rows for found in SESSION.finditer(row)} == {session}, "its row has its button"
    asked = admin.submit(f"/ui/access/sessions/{session}/revoke", {"reason": "lost"})
    assert "Please confirm" in asked.text
    assert lost.get("/ui").status_code == 200, "nothing happens before the answer"
    done = admin.submit(f"/ui/access/sessions/{session}/revoke", {"reason": "lost", "confirmed": "1"})
    assert done.status_code == 303
    # At once, where it was revoked: with its own key still valid, only the end of the session explains it.
    assert lost.get("/ui").status_code == 303
    assert [one.get("/ui").status_code for one in (kept, admin)] == [200, 200]
    assert session not in [one["id"] for one in api.get("/v1/sessions").json()["sessions"]]
    newest = api.get("/v1/audit").json()["entries"][0]
    assert (newest["verb"], newest["actor"], newest["reason"]) == ("revoke_session", "ana", "lost")
    assert session in newest["target"]
    assert lost.login(key["key"]).status_code == 303, "the key is as valid as before"


def test_a_browser_signs_out_everywhere(visit: Visit, sign: Sign, api: httpx.Client) -> None:
    key = api.post("/v1/keys", json={"name": "everywhere", "scopes": ["read"]}).json()["key"]
    first, second, other = visit(), visit(), sign(VIEWER)
    for browser in (first, second):
        assert browser.login(key).status_code == 303
    assert "Sign out everywhere" in first.page("/ui/preferences").text
    assert first.submit("/ui/logout", {"everywhere": "1"}).status_code == 303
    assert [one.get("/ui").status_code for one in (first, second, other)] == [303, 303, 200]
    assert "everywhere" not in [one["subject"] for one in api.get("/v1/sessions").json()["sessions"]]
    stranger = visit()
    assert "Sign out everywhere" not in stranger.page("/ui/preferences").text
    assert stranger.submit("/ui/logout", {"everywhere": "1"}).status_code == 303
    assert other.get("/ui").status_code == 200, "one without a session ends none"


def test_sessions_have_pages(sign: Sign, api: httpx.Client) -> None:
    admin = sign(ADMIN)
    for _ in range(3):
        sign(ADMIN)
    listed = api.get("/v1/sessions?limit=2").json()
    page = admin.page(f"/ui/access?sessions_after={listed['after']}&revoked=true")
    shown = SESSION.findall(page.text)
    assert shown
    assert not {one["id"] for one in listed["sessions"]} & set(shown), "it begins after that one"
    assert 'href="/ui/access?revoked=true"' in page.text, "and leads to the first page"
    assert 'hx-get="/ui/access?sessions_after=' in page.text, "what it reads again is this page"
    assert admin.page("/ui/access?sessions_after=nosession2").status_code == 404
    assert admin.page("/ui/access?sessions_after=x").status_code == 400


def test_sessions_are_listed_and_ended_over_the_api_as_well(visit: Visit, api: httpx.Client) -> None:
    key = api.post("/v1/keys", json={"name": "by-rest", "scopes": ["read"]}).json()
    browser = visit()
    browser.login(key["key"])
    mine = next(one for one in api.get("/v1/sessions").json()["sessions"] if one["subject"] == "by-rest")
    assert mine["address"] == "127.0.0.1"
    assert api.post(f"/v1/sessions/{mine['id']}/revoke", json={"reason": "test"}).json()["id"] == mine["id"]
    until(lambda: browser.get("/ui").status_code == 303, "the session has ended", within=timedelta(seconds=5))
    assert api.post(f"/v1/sessions/{mine['id']}/revoke", json={}).status_code == 404
    assert api.post("/v1/sessions/nope/revoke", json={}).status_code == 400
