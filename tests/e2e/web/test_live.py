"""The stream of hints and the charts, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from html import unescape

import httpx

from tests.e2e.web.conftest import OTHER, VIEWER, Browser, Sign
from tests.support.waiting import until


def hint(lines: Iterator[str]) -> tuple[str, list[str]]:
    """The next hint: its id and its kinds."""
    last = ""
    for line in lines:
        if line.startswith("id: "):
            last = line.removeprefix("id: ")
        elif line.startswith("data: "):
            return last, json.loads(line.removeprefix("data: "))["kinds"]
    raise AssertionError("the stream has ended")


def test_hints_need_a_session_and_the_stream_ends_with_it(
    sign: Sign, visit: Callable[[], Browser], api: httpx.Client
) -> None:
    assert visit().get("/ui/live").status_code == 303
    viewer = sign(VIEWER)
    with viewer.stream("GET", "/ui/live") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["x-accel-buffering"] == "no"
        lines = stream.iter_lines()
        first, kinds = hint(lines)
        assert kinds == []
        assert api.post("/v1/jobs", json={"topic": "live", "payload": {}}).status_code == 201
        _, kinds = hint(lines)
        assert "jobs" in kinds
        assert viewer.submit("/ui/logout").status_code == 303
        for _line in lines:  # ends; the time limit of the client would raise
            pass
    with sign(VIEWER).stream("GET", f"/ui/live?after={first}") as stream:
        assert "jobs" in hint(stream.iter_lines())[1], "what has changed since"


def _has_table(viewer: Browser, path: str, title: str) -> bool:
    return f'<caption class="visually-hidden">{title}</caption>' in viewer.get(path).text


def test_charts_have_a_table_and_are_read_again_only_when_they_have_changed(sign: Sign, api: httpx.Client) -> None:
    api.post("/v1/jobs", json={"topic": "charted", "payload": {}})
    viewer = sign(VIEWER)
    page = viewer.get("/ui/charts?topic=charted&since=15m")
    assert page.status_code == 200
    assert "<hg-chart" in page.text
    assert "<script>" not in page.text
    assert '<caption class="visually-hidden">Throughput</caption>' in page.text
    for path in ("/ui/charts?topic=charted&since=15m", "/ui"):  # a server looks at what waits after a few seconds
        until(partial(_has_table, viewer, path, "Oldest due job"), f"{path} shows since when jobs wait")
    topic = viewer.get("/ui/topics/charted")
    assert topic.status_code == 200
    assert 'hx-get="/ui/charts?topic=charted' in topic.text, "read when the page is there, and a link without a script"
    tag = ""

    def is_unchanged() -> bool:
        nonlocal tag
        part = viewer.get(
            "/ui/charts?topic=charted&since=15m", headers={"hx-request": "true", "if-none-match": tag or '"none"'}
        )
        if part.status_code == 304:
            return True
        assert part.text.lstrip().startswith("<section")
        tag = part.headers["etag"]
        return False

    until(is_unchanged, "two readings have the same tag")  # a minute may begin between two of them
    api.post("/v1/jobs", json={"topic": "charted", "payload": {}})
    until(lambda: not is_unchanged(), "a further job has changed it")
    assert viewer.get("/ui/charts?since=2h").status_code == 400
    assert "15m, 1h, 6h, 24h, 7d" in unescape(viewer.get("/ui/charts?since=2h").text)
    assert sign(OTHER).get("/ui/charts?topic=charted").status_code == 404, "not a topic of this tenant"
