"""Topics that no connected worker handles: how commands report them."""

from __future__ import annotations

from headgate.domain.errors import HeadgateError
from headgate.sdk import Headgate
from headgate.sdk.admin import Status


def unhandled_lines(status: Status) -> list[str]:
    """Return one line for each topic whose jobs wait for a worker that is not there, with the most similar name."""
    return [_line(topic, nearest) for topic, nearest in status.unhandled.items()]


async def explain_timeout(hg: Headgate, topic: str, error: HeadgateError) -> None:
    """Add to the error of a wait that no connected worker handles the topic, if that is so and can be known."""
    try:
        unhandled = (await hg.admin.status()).unhandled
    except HeadgateError:  # for example a token that may only submit
        return
    if topic in unhandled:
        error.add_note(_line(topic, unhandled[topic]))


def _line(topic: str, nearest: str) -> str:
    return f'no connected worker handles topic "{topic}"' + (f'; did you mean "{nearest}"?' if nearest else "")
