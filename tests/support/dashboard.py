"""A browser without JavaScript: pages, forms and cookies of the dashboard over HTTP, and jobs to look at."""

from __future__ import annotations

import html
import re
from typing import Any

import httpx

from tests.support import http_clients


class Visit:
    """One browser: anonymous until it signs in, or the developer of `headgate dev`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = http_clients.client(base_url=url)
        self._csrf = ""

    def sign_in(self, token: str) -> None:
        """Begin a session."""
        answer = self.post("/ui/login", page="/ui/login", token=token)
        assert answer.status_code == 303, text_of(answer)
        self._csrf = ""  # the token of a form belongs to the session

    def close(self) -> None:
        self.http.close()

    def get(self, path: str, **headers: str) -> httpx.Response:
        """A page; its form token is kept for the next form."""
        answer = self.http.get(path, headers=headers)
        found = re.search(r'name="csrf" (?:content|value)="([^"]+)"', answer.text)
        self._csrf = found[1] if found else self._csrf
        return answer

    def post(self, path: str, page: str = "/ui/jobs", **fields: Any) -> httpx.Response:
        """Send a form as if it were on `page`."""
        if not self._csrf or page == "/ui/login":
            self.get(page)
        headers = {"origin": self.url, "sec-fetch-site": "same-origin", "referer": self.url + page}
        return self.http.post(path, data={"csrf": self._csrf, **fields}, headers=headers)

    def followed(self, answer: httpx.Response) -> httpx.Response:
        """The page that an action leads to."""
        assert answer.status_code == 303, f"{answer.status_code}: {text_of(answer)}"
        return self.get(answer.headers["location"])


def text_of(answer: httpx.Response) -> str:
    """What a reader sees of a page: no tags, single spaces. A place where a long name may break is no space."""
    inner = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", answer.text.replace("<wbr>", ""), flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", inner)))


def submitted(api: httpx.Client, topic: str, count: int = 1, **more: Any) -> list[str]:
    """Jobs, by the REST API."""
    answer = api.post("/v1/jobs/batch", json={"jobs": [{"topic": topic, **more}] * count})
    assert answer.status_code == 200, answer.text
    return [one["id"] for one in answer.json()["receipts"]]


def died(api: httpx.Client, topic: str, *, message: str = "it cannot be done", **more: Any) -> list[str]:
    """All pending jobs of a topic end as dead letters: claimed by a worker, and failed for good."""
    ids: list[str] = []
    while jobs := claimed(api, topic):
        failure = {"type": "ValueError", "message": message, "permanent": True, **more}
        outcomes = [{"id": one["id"], "epoch": one["epoch"], "failed": failure} for one in jobs]
        answer = api.post("/v1/jobs/outcomes", json={"worker_id": "w-1", "outcomes": outcomes})
        assert answer.status_code == 200, answer.text
        ids += [one["id"] for one in jobs]
    return ids


def claimed(api: httpx.Client, topic: str, *, worker: str = "w-1", count: int = 1_000) -> list[dict[str, Any]]:
    """Jobs that a worker runs now."""
    answer = api.post("/v1/jobs/claim", json={"worker_id": worker, "topics": [topic], "count": count})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json().get("jobs", [])
    return found
