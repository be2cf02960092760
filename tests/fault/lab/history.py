"""The recorder: one file of JSON lines per process, each written before the process continues; and how they are merged.

An operation is noted when it is asked for (`invoke`) and when its answer is known: `ok`, `fail` (certainly nothing was
done) or `info` (no one knows). What merely happened is one line of its own kind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

SUFFIX: Final = ".history.jsonl"
OK, FAIL, INFO = "ok", "fail", "info"
INVOKE: Final = "invoke"
OFF_US: Final = 50_000
"""A wall clock this far from the laboratory's is not the machine's."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line. `t` is the monotonic clock in ns, `w` the wall clock in µs; `data` holds what its kind has to say."""

    t: int
    w: int
    proc: str
    seq: int
    kind: str
    data: Mapping[str, Any] = field(hash=False)

    def __getitem__(self, name: str) -> Any:
        return self.data[name]

    def get(self, name: str, default: Any = None) -> Any:
        """As of a dict."""
        return self.data.get(name, default)

    def line(self, since: int = 0) -> str:
        """For people: seconds since `since`, who, what."""
        words = " ".join(f"{key}={_short(value)}" for key, value in self.data.items())
        return f"{(self.t - since) / 1e9:9.4f} {self.proc:12} #{self.seq:<6} {self.kind:14} {words}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 160 else f"{text[:157]}…"


class Recorder:
    """Appends to one file. A line costs some microseconds; threads may share it, since a write is one system call."""

    def __init__(self, folder: Path, proc: str) -> None:
        self.proc = proc
        self.path = _unused(folder, proc)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        self._seq = 0
        self._operations = 0

    def note(self, kind: str, /, **data: object) -> None:
        """Write one line; it is the kernel's when this returns."""
        self._seq += 1
        line = {"t": time.monotonic_ns(), "w": time.time_ns() // 1000, "p": self.proc, "n": self._seq, "k": kind}
        os.write(self._file, _encode({**line, "d": data}) + b"\n")

    def invoke(self, what: str, /, **data: object) -> str:
        """An operation begins; gives the name by which its end refers to it."""
        self._operations += 1
        op = f"{self.path.name.removesuffix(SUFFIX)}:{self._operations}"
        self.note(INVOKE, op=op, what=what, **data)
        return op

    def end(self, op: str, status: str, /, **data: object) -> None:
        """An operation's answer: `ok`, `fail` or `info`."""
        self.note(status, op=op, **data)

    def close(self) -> None:
        """No more lines."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read(path: Path) -> Iterator[Event]:
    """The lines of one file; one that a kill cut short is left out."""
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            found = _decode(line)
            yield Event(t=found["t"], w=found["w"], proc=found["p"], seq=found["n"], kind=found["k"], data=found["d"])


def merged(folder: Path) -> list[Event]:
    """All lines of a run, oldest first."""
    return ordered(event for path in sorted(folder.glob(f"*{SUFFIX}")) for event in read(path))


def ordered(events: Iterable[Event]) -> list[Event]:
    """Oldest first; the lines of one process stay in their order."""
    return sorted(events, key=lambda event: (event.t, event.proc, event.seq))


def steadied(events: Iterable[Event], *, by: Iterable[str] = ("lab", "load")) -> list[Event]:
    """The same with the wall clock of processes that lie about it (faketime) replaced by the laboratory's own."""
    told = list(events)
    trusted = set(by)
    offsets = [event.w - event.t // 1000 for event in told if event.proc in trusted]
    if not offsets:
        return told
    low, high = min(offsets) - OFF_US, max(offsets) + OFF_US
    return [
        event if low <= event.w - event.t // 1000 <= high else replace(event, w=event.t // 1000 + offsets[0])
        for event in told
    ]


def clock_spread_us(events: Iterable[Event]) -> int:
    """By how much wall clock and monotonic clock moved against each other during a run."""
    offsets = [event.w - event.t // 1000 for event in events]
    return max(offsets) - min(offsets) if offsets else 0


def _unused(folder: Path, proc: str) -> Path:
    number = 1
    while (path := folder / f"{proc}{'' if number == 1 else f'.{number}'}{SUFFIX}").exists():
        number += 1
    return path
