"""The overview: what runs against its limit, and where what fails leads to."""

from __future__ import annotations

import re

import httpx

from tests.e2e.web.conftest import VIEWER, Sign
from tests.support.dashboard import died, submitted
from tests.support.waiting import until


def test_a_topic_shows_its_limit_and_a_failure_leads_to_one_of_its_jobs(api: httpx.Client, sign: Sign) -> None:
    assert api.patch("/v1/topics/at-most-seven", json={"settings": {"max_running": 7}}).is_success
    (one,) = submitted(api, "at-most-seven")
    died(api, "at-most-seven", message="the overview has this")
    browser = sign(VIEWER)

    def failing() -> bool:
        return "the overview has this" in browser.page("/ui").text

    until(failing, "the failure is shown")
    page = browser.page("/ui").text
    assert re.search(r'data-label="Running / limit"><span>0 <span class="muted">/ 7</span>', page)
    assert re.search(rf'<a href="/ui/jobs/{one}">[^<]*the overview has this', page)
