"""What this browser has chosen: theme, keyboard, times, density, live updates. Kept in a cookie, not on the server."""

from __future__ import annotations

from dataclasses import replace

from headgate.domain.errors import InvalidInput
from headgate.web.cookies import CHOICES
from headgate.web.request import Html, PageRequest
from headgate.web.routing import open_action, open_page, safe_path


@open_page("/preferences")
async def preferences_page(request: PageRequest) -> Html:
    """All choices."""
    return request.render("preferences.html")


@open_action("/preferences")
async def set_preferences(request: PageRequest) -> Html:
    """Keep those that are in the form."""
    chosen = dict[str, str]()
    for name, values in CHOICES.items():
        value = request.fields.text(name)
        if not value:
            continue
        if value not in values:
            raise InvalidInput(name, f'"{value}" is not a choice', hint=f"use one of {', '.join(values)}")
        chosen[name] = value
    kept = replace(request.visitor.preferences, **chosen)
    message = "" if set(chosen) == {"theme"} else "Preferences are kept in this browser."
    goal = safe_path(request.fields.raw("next")) if "next" in request.fields else ""
    return request.done(message, to=goal, cookies=[kept.cookie(secure=request.visitor.secure)])
