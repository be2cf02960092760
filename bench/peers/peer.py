"""What the catalogue says of one library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias


class Store(StrEnum):
    """Where the jobs are kept."""

    HEADGATE = "headgate"
    POSTGRES = "postgres"
    REDIS = "redis"


Setting: TypeAlias = int | str
WORKERS = "WORKERS"
"""How many worker processes are started; the other variables are read by the programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """How many jobs each lane gets: fewer for those that are slow, so that no lane takes more than some seconds."""

    bulk: int = 20_000
    work: int = 20_000
    """Of drain and of cycle."""
    single: int = 20_000
    many: bool = False
    """Bulk, drain and cycle also with the large number of jobs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Peer:
    """One library to measure."""

    name: str
    title: str
    store: Store
    package: str = ""
    """The distribution whose version is shown."""
    requirements: tuple[str, ...] = ()
    """Pinned, for pip or (when `program` ends in .mjs) for npm. Go reads its pins from the program's go.mod."""
    python: tuple[int, int] = (3, 11)
    """The oldest Python it runs on."""
    program: str
    jobs: Jobs
    left: tuple[str, ...]
    """What is not finished: an SQL condition after `SELECT EXISTS (SELECT FROM`, or Redis commands to be summed."""
    options: Mapping[str, Setting]
    """What the sweep begins with, and what is measured unless it found better ones (bench/peers/sweep.py). They reach
    the programs as environment variables."""
    words: Mapping[str, str]
    """The library's own name for each of them."""
    also: str
    """The settings that are not varied."""
    sweep: tuple[Mapping[str, Setting], ...] = ()
    """What else is tried: each changes some of `options`."""
    durability: str
    batching: str
    visibility: str
    """Who sees a finished job afterwards, and how."""

    @property
    def workers(self) -> int:
        """How many worker processes are started; libraries that fork by themselves count as one."""
        return int(self.options[WORKERS])

    @property
    def settings(self) -> str:
        """All of them, as a reader knows them."""
        return f"{self.described(self.options)}; {self.also}"

    def described(self, options: Mapping[str, Setting]) -> str:
        """Some options in the library's own words."""
        words = {WORKERS: "worker processes"} | dict(self.words)
        return ", ".join(
            f"{words[name]} {value:,}" if isinstance(value, int) else f"{words[name]} {value}"
            for name, value in options.items()
        )

    def with_options(self, options: Mapping[str, Setting]) -> Peer:
        """The same library with some settings changed."""
        return replace(self, options={**self.options, **options})
