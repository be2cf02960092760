"""Hints for open pages: which kind of thing has changed, never what. A page then reads its parts again.

A version is a number that is different after a change. The versions a page has seen are the id of a hint, so that a
browser that connects again, to any instance, learns what has changed meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

VERSIONS_MAX_CHARS: Final = 500
_VERSIONS: Final = re.compile(r"[a-z]{1,20}-[0-9]{1,20}(?:\.[a-z]{1,20}-[0-9]{1,20}){0,9}")


class HintKind(StrEnum):
    """What pages follow."""

    JOBS = "jobs"  # some job has changed its state
    SETTINGS = "settings"  # something that the audit has: pauses, topics, schedules, keys, webhooks
    WORKERS = "workers"  # workers and servers
    OPERATIONS = "operations"  # progress of bulk operations
    MODE = "mode"  # whether the database takes writes


@dataclass(frozen=True, slots=True)
class Versions:
    """The version of each kind."""

    by_kind: Mapping[HintKind, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return ".".join(f"{kind}-{version}" for kind, version in self.by_kind.items())

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Read an id; what is not one says nothing, and all that is there counts as changed."""
        if len(text) > VERSIONS_MAX_CHARS or not _VERSIONS.fullmatch(text):
            return cls()
        parts = dict(one.split("-") for one in text.split("."))
        return cls({kind: int(parts[kind]) for kind in HintKind if kind in parts})

    def changed(self, before: Versions) -> list[HintKind]:
        """The kinds whose version is another one than before."""
        return [kind for kind, version in self.by_kind.items() if before.by_kind.get(kind) != version]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """These kinds have changed. The first one of a stream says where it begins. `alive`: nothing has changed."""

    kinds: list[HintKind]
    versions: Versions
    alive: bool = False
