"""Templates: what every one of them knows. Autoescape is always on, and a name that is not given is an error."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from headgate.domain import limits
from headgate.domain.log_fields import REQUEST_ID
from headgate.domain.states import State
from headgate.domain.topic_figures import NEARLY_FULL, WAITING_LONG
from headgate.web.cookies import CHOICES, Flash
from headgate.web.filters import FILTERS
from headgate.web.navigation import ITEMS, Item, current
from headgate.web.routing import PREFIX
from headgate.web.static_files import StaticFiles

if TYPE_CHECKING:
    from headgate.web.request import PageRequest

TEMPLATES: Final = Path(__file__).parent / "templates"


class Rendering:
    """The environment of all templates."""

    def __init__(self, files: StaticFiles, *, version: str, instance: str) -> None:
        self._items: tuple[Item, ...] = ITEMS
        self._environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            extensions=["jinja2.ext.do"],
        )
        self._environment.filters.update(FILTERS)
        self._environment.globals.update(
            static=files.url,
            url=url,
            ui=PREFIX,
            app_version=version,
            instance=instance,
            State=State,
            states=[state.label for state in State],
            waiting_long=WAITING_LONG,
            nearly_full=NEARLY_FULL,
            list_look_at=limits.LIST_LOOK_AT,
            choices=CHOICES,
        )

    def serve(self, paths: Sequence[str]) -> None:
        """Leave pages out of the menu that are not served."""
        self._items = tuple(item for item in ITEMS if item.path in paths)

    def text(self, template: str, request: PageRequest, *, flash: Flash | None = None, **values: Any) -> str:
        """A template as text."""
        visitor = request.visitor
        items = [item for item in self._items if visitor.identity is None or visitor.can(item.uses)]
        known = {
            "visitor": visitor,
            "me": visitor.identity,
            "can": visitor.can,
            "csrf": visitor.csrf if visitor.cookie else "",
            "preferences": visitor.preferences,
            "menu": items,
            "here": current(request.path, self._items),
            "path": request.path,
            "query": request.query,
            "now": datetime.now(UTC),
            "flash": flash,
            "request_id": REQUEST_ID.get(),
            "is_fragment": request.is_fragment,
        }
        return self._environment.get_template(template).render(known | values)


def url(*parts: object, **query: object) -> str:
    """An address below /ui: `url("topics", name, before=7)`. Parts are encoded, a query without a value is left out."""
    path = "/".join([PREFIX, *(quote(str(part), safe="") for part in parts)])
    given = {name: value for name, value in query.items() if value not in (None, "", False)}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def pager(*parts: object, at: str, here: object, following: object, **query: object) -> dict[str, Any]:
    """The links of the macro `pager`, to the next page and the first one; `at` is the parameter of the position."""
    return {
        "next_url": url(*parts, **query, **{at: following}) if following else "",
        "first_url": url(*parts, **query) if here else "",
    }
