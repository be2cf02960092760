"""The catalogue: one function per fault, by its number.

    @scenario("F1", "worker SIGKILL mid-run", checks=("I1", "I3", "I13"), world={"workers": 4})
    async def workers_are_killed(world: World) -> None:
        ...                                       # break things while the load runs; return when it is enough

The function gets a `World` that is up, with its load running. When it returns, everything is healed and drained, and
*all* invariants are checked; `checks` are those the catalogue names for it. A fault that lasts in the catalogue for
longer than anybody wants to wait takes `world.lasting(short, long)` seconds: the catalogue's own with LONG=1, for which
`longer` is added to its deadline. What the function asserts itself (a
readiness, a metric, a time) fails the scenario by AssertionError. One that this machine cannot run raises `NotRunHere`
with the reason, and is reported as not run, which is not green.

Each module covers a group; `all_scenarios` imports every one of them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from tests.fault.lab.world import DRAIN, NotRunHere, World

__all__ = ["NotRunHere", "Scenario", "World", "all_scenarios", "elsewhere", "scenario", "waiting"]
Act = Callable[[World], Awaitable[None]]
WITHIN: Final = timedelta(minutes=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One fault of the catalogue and how to bring it about."""

    number: str
    title: str
    act: Act
    checks: tuple[str, ...] = ()
    world: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Arguments of `World`: servers, workers, lease, rate, weights, server_args, settings …"""
    warm_up: float = 1.0
    """Seconds of load before the fault."""
    drain: timedelta = DRAIN
    leave_out: tuple[str, ...] = ()
    """Invariants that stand on what this fault breaks (such as the database's clock); the docstring says why."""
    logs: tuple[str, ...] = ()
    """Patterns of errors in the logs that this fault brings about on purpose; see `tests.fault.lab.logs`."""
    expect_red: tuple[str, ...] = ()
    """For a positive control: invariants that must be violated, or the scenario fails."""
    must_meet: tuple[str, ...] = ()
    """Facts that this scenario is made to meet (checker/coverage.py): without them, its green is judged by nothing."""
    within: timedelta = WITHIN
    """For all of it; then it is ended, and has failed."""
    longer: timedelta = timedelta()
    """How much more it may take in its long form."""
    long_world: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What is different in the world of its long form."""
    waits_for: str = ""
    """A part of the product that is not there yet: reported as waiting, without a world."""
    elsewhere: str = ""
    """What brings this fault about instead: reported, without a world."""

    def deadline(self, *, long: bool) -> timedelta:
        """From its first process to its verdict."""
        return self.within + self.longer if long else self.within


_REGISTRY: Final[dict[str, Scenario]] = {}


def waiting(number: str, title: str, part: str) -> None:
    """A fault of the catalogue that waits for a part of the product."""

    _REGISTRY[number] = Scenario(number=number, title=title, act=_nothing, waits_for=part)


def elsewhere(number: str, title: str, where: str) -> None:
    """A fault of the catalogue that something else than this laboratory brings about."""
    _REGISTRY[number] = Scenario(number=number, title=title, act=_nothing, elsewhere=where)


async def _nothing(world: World) -> None:
    raise NotRunHere("there is nothing to do here")


def scenario(
    number: str,
    title: str,
    *,
    checks: Sequence[str] = (),
    world: Mapping[str, Any] | None = None,
    warm_up: float = 1.0,
    drain: timedelta = DRAIN,
    leave_out: Sequence[str] = (),
    logs: Sequence[str] = (),
    expect_red: Sequence[str] = (),
    must_meet: Sequence[str] = (),
    within: timedelta = WITHIN,
    longer: timedelta = timedelta(),
    long_world: Mapping[str, Any] | None = None,
) -> Callable[[Act], Act]:
    """Register the decorated function under its number; a variant is F31b."""

    def register(act: Act) -> Act:
        if number in _REGISTRY:
            raise ValueError(f"{number} is registered already: {_REGISTRY[number].title}")
        _REGISTRY[number] = Scenario(
            number=number,
            title=title,
            act=act,
            checks=tuple(checks),
            world=dict(world or {}),
            warm_up=warm_up,
            drain=drain,
            leave_out=tuple(leave_out),
            logs=tuple(logs),
            expect_red=tuple(expect_red),
            must_meet=tuple(must_meet),
            within=within,
            longer=longer,
            long_world=dict(long_world or {}),
        )
        return act

    return register


def all_scenarios() -> dict[str, Scenario]:
    """Everything there is, in the order of the catalogue."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(_REGISTRY.items(), key=lambda one: _place(one[0])))


def _place(number: str) -> tuple[str, int, str]:
    digits = "".join(sign for sign in number if sign.isdigit())
    return number[:1], int(digits), number
