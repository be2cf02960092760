"""Tracebacks with the frames of libraries folded, so that frames of the application are seen first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_PYTHON_FRAME: Final = re.compile(r'\s*(?:[|+] *)*File "(?P<path>[^"]*)", line \d+')
_NODE_FRAME: Final = re.compile(r"\s+at .*?(?P<path>[^\s()]+):\d+:\d+\)?$")
_LIBRARY: Final = re.compile(
    r"site-packages|dist-packages|[/\\]lib[/\\]python3|^<frozen |node_modules|^node:|[/\\]headgate[/\\]sdk[/\\]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Lines of a traceback. `frames` of a library: how many there are, folded; 0: shown."""

    lines: Sequence[str]
    frames: int = 0

    @property
    def text(self) -> str:
        """The lines as they were."""
        return "\n".join(self.lines)


def folded(traceback: str) -> list[Part]:
    """The traceback in parts. One of libraries alone is shown whole: there is nothing else to look at."""
    parts = list(_parts(traceback.rstrip().splitlines()))
    if not any(part.frames == 0 and any(_path_of(line) for line in part.lines) for part in parts):
        return [Part(lines=[line for part in parts for line in part.lines])] if parts else []
    return parts


def _parts(lines: Sequence[str]) -> Iterator[Part]:
    """Lines put together: what belongs to frames of libraries, and everything else."""
    kept: list[str] = []
    frames = 0  # of a library, in `kept`
    in_library = False
    for line in lines:
        path = _path_of(line)
        if path:
            is_library = _LIBRARY.search(path) is not None
        elif in_library and line[:1].isspace():
            is_library = True  # the source line of the frame above
        else:
            is_library = False
        if kept and is_library != in_library:
            yield Part(lines=kept, frames=frames)
            kept, frames = [], 0
        in_library = is_library
        frames += bool(path) and is_library
        kept.append(line)
    if kept:
        yield Part(lines=kept, frames=frames)


def _path_of(line: str) -> str:
    found = _PYTHON_FRAME.match(line) or _NODE_FRAME.match(line)
    return found["path"] if found else ""
