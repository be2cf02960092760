"""The request as pages see it: who calls, the use cases, the form that was sent; and the answers that a page can give.

return request.render("topics/index.html", fragment="topics/_table.html", topics=found)
return request.done('Topic "mail" is paused.', to="/ui/topics/mail")
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from litestar import Response
from litestar.datastructures import Cookie

from headgate.api.errors import RequestTimeout
from headgate.api.http.problems import UnsupportedMediaType
from headgate.api.http.request import ApiRequest
from headgate.domain import limits
from headgate.web.cookies import FLASH, Flash, Level, Undo, forgotten, visitor_cookie
from headgate.web.forms import Form
from headgate.web.rendering import Rendering
from headgate.web.routing import PREFIX, safe_path
from headgate.web.visitor import Visitor

Html: TypeAlias = Response[str]
HTML: Final = "text/html"
OPEN_FORM_MAX_BYTES: Final = 16_384
"""Maximum size of a form without a login."""
_TIME_TEXT: Final = re.compile(r"(<time[^>]*>)[^<]*")
_FORM_TYPE: Final = "application/x-www-form-urlencoded"


class PageRequest(ApiRequest):
    """One request of a browser. The guard has admitted it when a page gets it."""

    fields: Form = Form([])
    """The form that was sent; empty for GET."""

    @property
    def visitor(self) -> Visitor:
        """The browser."""
        found: Visitor | None = self.scope.get("visitor")  # type: ignore[assignment]
        return found or Visitor(cookie="")

    @property
    def rendering(self) -> Rendering:
        """The templates."""
        found: Rendering = self.app.state["rendering"]
        return found

    @property
    def is_secure(self) -> bool:
        """Whether it came over TLS of this port. One that a proxy has decrypted did not."""
        return self.scope["scheme"] == "https"

    @property
    def is_fragment(self) -> bool:
        """Whether htmx asks for a part of the page."""
        return "hx-request" in self.headers and "hx-boosted" not in self.headers

    @property
    def path(self) -> str:
        """The path as it was sent. The one of `url` is decoded: a name with a slash would be two segments of a link."""
        return self.scope["raw_path"].decode("ascii", "replace")

    @property
    def query(self) -> str:
        """The query as it was sent."""
        return self.scope["query_string"].decode("ascii", "replace")

    @property
    def address(self) -> str:
        """Path and query: a link to this very page."""
        return f"{self.path}?{self.query}" if self.query else self.path

    @property
    def here(self) -> str:
        """The path and query of the page that the browser shows; the overview, if it is none of ours."""
        own = self.address if self.method == "GET" else PREFIX  # an action is no page
        try:
            shown = urlsplit(self.headers.get("hx-current-url") or self.headers.get("referer") or own)
        except ValueError:  # of a header that is not a URL
            return PREFIX
        return safe_path(shown.path + (f"?{shown.query}" if shown.query else ""))

    async def read_form(self) -> Form:
        """The form, within the size of the rule. Raises InvalidInput."""
        if self.content_type[0].lower() != _FORM_TYPE:
            raise UnsupportedMediaType(self.content_type[0])
        if self.visitor.identity is not None and "auth" in self.scope:
            raw = await self.body()
        else:
            try:
                async with asyncio.timeout(limits.REQUEST_WITHIN.total_seconds()):
                    raw = await self._read(OPEN_FORM_MAX_BYTES)
            except TimeoutError:
                raise RequestTimeout(limits.REQUEST_WITHIN) from None
        self.fields = Form.parse(raw)
        return self.fields

    def render(self, template: str, /, *, fragment: str = "", status_code: int = 200, **values: Any) -> Html:
        """A page; or only the template `fragment`, if htmx asks for a part. A part that has not changed is 304."""
        part = bool(fragment) and self.is_fragment
        flash = None if part else Flash.of(self.cookies.get(FLASH, ""))
        text = self.rendering.text(fragment if part else template, self, flash=flash, **values)
        headers = {"vary": "hx-request, cookie"}
        if part:
            headers["hg-read-only"] = "1" if self.visitor.read_only else "0"  # static/js/live.js shows the banner
        if part and status_code == 200:
            tag = f'"{hashlib.sha256(_TIME_TEXT.sub(_TAG_ONLY, text).encode()).hexdigest()[:24]}"'
            headers["etag"] = tag  # static/js/live.js remembers it: the answer itself is not stored (edge.py)
            if self.headers.get("if-none-match") == tag:
                return Response("", status_code=304, headers=headers, media_type=HTML)
        cookies = self._page_cookies(read_flash=flash is not None)
        return Response(text, status_code=status_code, headers=headers, media_type=HTML, cookies=cookies)

    def done(
        self,
        message: str,
        *,
        to: str = "",
        changed: str = "",
        level: Level = "ok",
        cookies: list[Cookie] | None = None,
        undo: Undo | None = None,
    ) -> Html:
        """The answer to an action: a message, and where to go on; by default the page that sent the form.

        `changed` names what live parts of the page should read again: see `data-live` in static/js/live.js. `undo` is
        offered beside the message, for ten seconds.
        """
        flash = Flash(message, level, undo)
        target = to or self.here
        set_cookies = list(cookies or ())
        if not self.is_fragment:
            if message:
                set_cookies.append(flash.cookie(secure=self.visitor.secure))
            return Response("", status_code=303, headers={"location": target}, media_type=HTML, cookies=set_cookies)
        if to and urlsplit(to).path != urlsplit(self.here).path:
            if message:
                set_cookies.append(flash.cookie(secure=self.visitor.secure))
            return Response("", headers={"hx-redirect": target}, media_type=HTML, cookies=set_cookies)
        shown = {"text": message, "level": level, "undo": undo and undo.plain()}
        events = {"hg:toast": shown, "hg:changed": {"what": changed}}
        headers = {"hx-trigger": json.dumps(events), "hx-reswap": "none"}
        return Response("", headers=headers, media_type=HTML, cookies=set_cookies)

    def _page_cookies(self, *, read_flash: bool) -> list[Cookie]:
        visitor, cookies = self.visitor, list[Cookie]()
        if visitor.is_new:
            cookies.append(visitor_cookie(visitor.cookie, secure=visitor.secure))
        if read_flash:
            cookies.append(forgotten(FLASH, secure=visitor.secure))
        return cookies


_TAG_ONLY: Final = r"\1"
