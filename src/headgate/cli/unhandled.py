"""Topics that no connected worker handles: how commands report them."""

from __future__ import annotations

from typing import Final

from headgate.domain.errors import HeadgateError
from headgate.sdk import Headgate
from headgate.sdk.admin import Status

NAMED_MAX: Final = 5
"""Topics named in one line."""


def unhandled_lines(status: Status) -> list[str]:
    """Return a line for each topic whose jobs wait for a worker that is not there; one for all if no worker is."""
    unhandled = status.unhandled
    if len(unhandled) > 1 and not status.handled:
        names = ", ".join(f'"{topic}"' for topic in list(unhandled)[:NAMED_MAX])
        more = f" and {len(unhandled) - NAMED_MAX} more" if len(unhandled) > NAMED_MAX else ""
        return [f"no worker is connected; jobs of {len(unhandled)} topics wait: {names}{more}"]
    return [_line(topic, nearest) for topic, nearest in unhandled.items()]


async def unhandled_line(hg: Headgate, topic: str) -> str:
    """Return that no connected worker handles the topic, or "" if one does or it cannot be known."""
    try:
        unhandled = (await hg.admin.status()).unhandled
    except HeadgateError:  # for example a token that may only submit
        return ""
    return _line(topic, unhandled[topic]) if topic in unhandled else ""


def _line(topic: str, nearest: str) -> str:
    return f'no connected worker handles topic "{topic}"' + (f'; did you mean "{nearest}"?' if nearest else "")
