"""The screen of `headgate top` in docs/howto/terminal.md, against a server with fixed answers."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from typing import Final
from unittest import mock

from headgate import Headgate
from headgate.cli.top import texts
from headgate.cli.top.app import TopApp
from headgate.domain.redaction import Redaction
from tests.support.canned_server import Answers, CannedServer
from tests.support.waiting import until_async

PAGE: Final = Path(__file__).parents[2] / "docs/howto/terminal.md"
SIZE: Final = (126, 12)
_BLOCK: Final = re.compile(r"^```\n headgate top .*?^```$", re.MULTILINE | re.DOTALL)


def rows_of(app: TopApp) -> str:
    """What is on the screen of a terminal."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


def screen(answers: Answers) -> str:
    """The first screen, without the empty lines between the table and the last lines."""
    with CannedServer(answers) as server, mock.patch.object(texts, "has_blocks", return_value=True):
        text = asyncio.run(_first(server.address))
    return "".join(f"{line}\n" for line in text.splitlines() if line.strip())


class _ReadsOnce(TopApp):
    """Shows the first answers: after the next ones the chart would have a second bar."""

    async def _poll(self) -> None:
        self.snapshot = await self._reader.read(self.place)
        self._show(self.snapshot)


async def _first(address: str) -> str:
    async with Headgate(address) as hg:
        app = _ReadsOnce(
            hg, server="queue.example:7070", redaction=Redaction.of([]), interval=timedelta(seconds=2), read_only=False
        )
        async with app.run_test(size=SIZE) as pilot:

            async def shown() -> bool:
                await pilot.pause()
                text = rows_of(app)
                return all(part in text for part in ("db ok", "DONE/s 39.8", "billing", "FAILING NOW"))

            await until_async(shown, "the screen has what the server answered")
            return rows_of(app)


def written(answers: Answers) -> str:
    """The page with what the screen shows now."""
    return _BLOCK.sub(lambda _: f"```\n{screen(answers)}```", PAGE.read_text())
