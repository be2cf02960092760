"""Names with characters that mean something in an address: every link, form and redirect leads to what it names."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from urllib.parse import quote, unquote

import httpx
import pytest

from tests.e2e.web.conftest import ADMIN, OPERATOR, VIEWER, WORKER, Browser, Sign
from tests.support import http_clients
from tests.support.server import ServerProcess

TOPIC, SCHEDULE, SOMEONE = "eu/mail:bulk", "eu/nightly:1", "pod 7/a?b=c#d%2Fe&é"
LINK = re.compile(r'(href|hx-get|action)="(/ui[^"]*)"')


def encoded(name: str) -> str:
    return quote(name, safe="")


PAGES = {
    f"/ui/topics/{encoded(TOPIC)}?since=1h": "topic-status",
    f"/ui/schedules/{encoded(SCHEDULE)}": "schedule",
    f"/ui/workers/{encoded(SOMEONE)}": "worker",
}


@pytest.fixture(scope="module", autouse=True)
def named(running: tuple[ServerProcess, str]) -> None:
    """A topic, a schedule and a worker with such names."""
    url = running[0].http_url
    with http_clients.client(base_url=url, headers={"authorization": f"Bearer {ADMIN}"}) as api:
        assert api.post("/v1/jobs", json={"topic": TOPIC, "payload": {}}).status_code == 201
        spec = {"topic": TOPIC, "timing": {"every": {"interval_ms": 3_600_000}}}
        assert api.put(f"/v1/schedules/{encoded(SCHEDULE)}", json={"spec": spec}).status_code == 200
        claim = {"worker_id": SOMEONE, "topics": ["none-such"], "count": 1, "wait_seconds": 0}
        worker = {"authorization": f"Bearer {WORKER}"}
        assert api.post("/v1/jobs/claim", json=claim, headers=worker).status_code == 200


def links(page: httpx.Response) -> set[tuple[str, str]]:
    """What a page links to, reads again and sends forms to, if it has one of the names."""
    found = {(kind, unescape(address)) for kind, address in LINK.findall(page.text)}
    names = ("mail:bulk", "nightly:1", "pod 7", "pod+7")
    return {(kind, one) for kind, one in found if any(name in unquote(one) for name in names)}


def test_every_link_and_form_of_a_name_leads_to_it(sign: Sign) -> None:
    browser = sign(OPERATOR)
    asked = set[tuple[str, str]]()
    for path in (*PAGES, "/ui/topics?q=mail", "/ui/schedules", "/ui/workers?q=pod", "/ui/jobs", "/ui/audit"):
        page = browser.page(path)
        assert page.status_code == 200, path
        asked |= links(page)
    assert {kind for kind, _ in asked} == {"href", "hx-get", "action"}
    for kind, address in sorted(asked):
        if kind == "action":
            # Without a token it is refused, and does nothing; a path that is no action would be 404 or 405.
            answer = browser.post(address, data={"csrf": ""}, headers={"origin": str(browser.base_url).rstrip("/")})
            assert answer.status_code == 403, address
        else:
            assert browser.get(address).status_code == 200, address


@pytest.mark.parametrize("path", PAGES)
def test_a_live_part_reads_the_page_that_it_is_on(sign: Sign, path: str) -> None:
    page = sign(OPERATOR).page(path)
    part = re.search(rf'<section id="{PAGES[path]}"[^>]*hx-get="([^"]*)"', page.text)
    assert part is not None
    assert unescape(part[1]) == path
    theme = re.search(r'name="next" value="([^"]*)"', page.text)
    assert theme is not None
    assert unescape(theme[1]) == path


def test_a_login_leads_back_to_the_page_that_was_asked_for(visit: Callable[[], Browser]) -> None:
    for path in PAGES:
        browser = visit()
        asked = browser.get(path)
        assert asked.status_code == 303
        goal = httpx.URL(asked.headers["location"]).params["next"]
        assert goal == path
        assert browser.login(OPERATOR, to=goal).headers["location"] == path
        assert browser.get(path).status_code == 200


def test_an_action_leads_back_to_the_page_that_sent_it_and_its_question_to_the_action(sign: Sign) -> None:
    browser = sign(OPERATOR)
    page, base = f"/ui/topics/{encoded(TOPIC)}?since=1h", str(browser.base_url).rstrip("/")
    browser.page(page)
    for verb in ("pause", "resume"):
        done = browser.submit(f"/ui/topics/{encoded(TOPIC)}/{verb}", referer=base + page)
        assert (done.status_code, done.headers["location"]) == (303, page)
    path = f"/ui/schedules/{encoded(SCHEDULE)}/delete"
    asked = browser.submit(path, {"question": "Delete it?"})
    assert "Please confirm" in asked.text
    assert f'action="{path}"' in asked.text
    assert 'href="/ui"' in asked.text, "an action is no page to go back to"


def test_a_page_is_compressed_for_browsers_that_take_it(sign: Sign) -> None:
    browser = sign(VIEWER)
    plain = browser.get("/ui/topics", headers={"accept-encoding": "identity"})
    packed = browser.get("/ui/topics", headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert "accept-encoding" in packed.headers["vary"]
    assert "cookie" in packed.headers["vary"]
    assert "</html>" in packed.text
    assert packed.num_bytes_downloaded < len(plain.content) / 3
    refused = browser.get("/ui/nothing-here", headers={"accept-encoding": "gzip"})
    assert (refused.status_code, refused.headers["content-encoding"]) == (404, "gzip")
