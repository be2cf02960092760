"""The pages that are served, with their parameters filled in: a new page is tested without being listed."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

from litestar.handlers import HTTPRouteHandler

from headgate.api.http.auth import OPEN
from headgate.web.pages import all_routes
from headgate.web.routing import DOWNLOAD, PART

QUERIES = {"/ui/operations/new": "?verb=redrive&filter=state:dead"}
"""For pages that show nothing without one."""
PARAMETER = re.compile(r"\{(\w+):\w+\}")
IMAGES = Path(__file__).parents[2] / "docs/images"
PICTURES = ("light", "dark", "narrow")
SINGULAR = {"batches": "batch", "deliveries": "delivery"}
"""Of words that do not only lose an s."""


def page_paths() -> list[str]:
    """The paths of all whole pages for people who are signed in, with their parameters."""
    return sorted(path for route in _pages() if not route.opt.get(OPEN) for path in route.paths)


def open_paths() -> list[str]:
    """The paths of all whole pages for people who are not signed in."""
    return sorted(path for route in _pages() if route.opt.get(OPEN) for path in route.paths)


def _pages() -> list[HTTPRouteHandler]:
    return [
        route
        for route in all_routes()
        if "GET" in route.http_methods and not route.opt.get(DOWNLOAD) and not route.opt.get(PART)
    ]


def filled(path: str, values: dict[str, str]) -> str:
    """A path with values for its parameters. A page with a new parameter needs a value in seed.py."""

    def value(found: re.Match[str]) -> str:
        known = values.get(found[1], "")
        assert known, f"{path}: tests/browser/seed.py has no value for {found[1]}"
        return quote(known, safe="")

    return PARAMETER.sub(value, path) + QUERIES.get(path, "")


def picture_name(path: str, kind: str) -> Path:
    """The file of a picture: that of `/ui/topics/{topic:str}/policy` is `topic-policy-light.webp`."""
    parts: list[str] = []
    for part in path.removeprefix("/ui").split("/"):
        if part.startswith("{"):
            parts[-1] = SINGULAR.get(parts[-1], parts[-1].removesuffix("s"))
        elif part:
            parts.append(part.strip("-"))
    return IMAGES / f"{'-'.join(parts) or 'overview'}-{kind}.webp"
