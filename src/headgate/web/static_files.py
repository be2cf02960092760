"""The files of the dashboard: read once, served from memory under a path that changes with their content.

All of them have one hash in their path (`/ui/static/HASH/js/app.js`), so that modules find each other by relative
names. A browser never asks for them again; a new version of Headgate has another path.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from litestar import Response
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from headgate.api.http.auth import OPEN
from headgate.api.http.edge import SLASH
from headgate.api.http.problems import UnknownRoute
from headgate.api.http.request import ApiRequest
from headgate.web.routing import PREFIX

ROOT: Final = Path(__file__).parent / "static"
TYPES: Final = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
IMMUTABLE: Final = "public, max-age=31536000, immutable"
GZIP_MIN_BYTES: Final = 600


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file, as it is and compressed."""

    media_type: str
    content: bytes
    compressed: bytes | None


class StaticFiles:
    """All files by their path, and the hash of all of them."""

    def __init__(self, root: Path = ROOT) -> None:
        digest = hashlib.sha256()
        self._files: dict[str, StaticFile] = {}
        for path in sorted(one for one in root.rglob("*") if one.suffix in TYPES):
            name, content = path.relative_to(root).as_posix(), path.read_bytes()
            digest.update(name.encode() + b"\0" + content)
            small = gzip.compress(content, mtime=0) if len(content) >= GZIP_MIN_BYTES else None
            self._files[name] = StaticFile(TYPES[path.suffix], content, small)
        self.hash = digest.hexdigest()[:16]

    def url(self, name: str) -> str:
        """The address of a file. Raises KeyError for one that does not exist."""
        if name not in self._files:
            raise KeyError(f"there is no static file {name}")
        return f"{PREFIX}/static/{self.hash}/{name}"

    def response(self, version: str, name: str, encodings: str) -> Response[bytes]:
        """A file. An old hash gets the current content, and is not kept: a page was open during an upgrade."""
        found = self._files.get(name)
        if found is None:
            raise UnknownRoute(f"{PREFIX}/static/{version}/{name}")
        headers = {"cache-control": IMMUTABLE if version == self.hash else "no-cache", "vary": "accept-encoding"}
        content = found.content
        if found.compressed is not None and "gzip" in encodings:
            content, headers["content-encoding"] = found.compressed, "gzip"
        return Response(content, headers=headers, media_type=found.media_type)


def static_route(files: StaticFiles) -> HTTPRouteHandler:
    """The route of all files."""

    async def static_file(request: ApiRequest, version: FromPath[str], name: FromPath[str]) -> Response[bytes]:
        return files.response(version, name.replace(SLASH, "/").lstrip("/"), request.headers.get("accept-encoding", ""))

    return HTTPRouteHandler(
        f"{PREFIX}/static/{{version:str}}/{{name:path}}",
        http_method="GET",
        opt={OPEN: True},
        include_in_schema=False,
    )(static_file)
