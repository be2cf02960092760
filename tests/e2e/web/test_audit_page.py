"""The audit log: newest first, filters in the address, before and after."""

from __future__ import annotations

import httpx

from tests.e2e.web.conftest import OPERATOR, VIEWER, Sign
from tests.support.dashboard import text_of


def test_a_change_is_listed_with_what_was_before_and_after(api: httpx.Client, sign: Sign) -> None:
    api.post("/v1/jobs", json={"topic": "audited", "payload": {}})
    browser = sign(OPERATOR)
    browser.page("/ui/topics/audited/policy")
    browser.submit("/ui/topics/audited/policy/apply", {"version": "0", "max_running": "41", "reason": "load test one"})
    browser.submit("/ui/topics/audited/policy/apply", {"version": "1", "max_running": "42", "reason": "load test two"})
    page = browser.page("/ui/audit?target=topic%20audited&actor=otto")
    text = " ".join(text_of(page).split())
    assert text.index("load test two") < text.index("load test one"), "newest first"
    assert "max_running before: 41 after: 42" in text
    assert 'href="/ui/topics/audited"' in page.text


def test_filters_are_in_the_address_and_say_when_nothing_matches(sign: Sign) -> None:
    browser = sign(VIEWER)
    page = browser.page("/ui/audit?actor=nobody&since=24h")
    assert "No entry matches" in text_of(page)
    assert 'value="nobody"' in page.text
    assert browser.page("/ui/audit?since=yesterday-ish").status_code == 400
