"""Batches: the graph with links, the same as a list, and a bound."""

from __future__ import annotations

import httpx

from tests.e2e.web.conftest import OPERATOR, VIEWER, Sign
from tests.support.dashboard import text_of


def test_a_batch_is_a_graph_of_links_and_a_list(api: httpx.Client, sign: Sign) -> None:
    opened = api.post("/v1/batches", json={"name": "month end", "on_done": {"topic": "report", "payload": {}}})
    assert opened.status_code == 201, opened.text
    batch = opened.json()["id"]

    def job(topic: str, *parents: str) -> str:
        made = api.post("/v1/jobs", json={"topic": topic, "payload": {}, "batch": batch, "depends_on": list(parents)})
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    first = job("extract")
    for _ in range(5):
        job("resize", first)
    page = sign(VIEWER).page(f"/ui/batches/{batch}")
    assert page.status_code == 200
    assert f'href="/ui/jobs/{first}"' in page.text
    assert "resize × 5" in page.text, "jobs that stand alike are one box"
    assert "on done" in page.text
    assert page.text.count('class="edge') == 2
    assert "style=" not in page.text
    text = text_of(page)
    assert "month end" in text
    assert first[-12:] in text, "the list says what each waits for"
    assert "month end" in text_of(sign(VIEWER).page("/ui/batches?open=true"))
    browser = sign(OPERATOR)
    browser.page(f"/ui/batches/{batch}")
    assert browser.submit(f"/ui/batches/{batch}/seal", {"confirmed": "1"}).status_code == 303
    assert batch not in browser.page("/ui/batches?open=true").text
