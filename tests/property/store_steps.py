"""The steps of the model run: verbs of the machine, chosen by weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hypothesis import strategies as st

from headgate.domain.jobs import Submission
from headgate.domain.states import State
from tests.property.store_draws import machine

if TYPE_CHECKING:
    from tests.property.store_machine import StoreMachine

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Verb:
    """One thing that can be done: how often, when it makes sense, and with what."""

    name: str
    weight: int
    when: Callable[[StoreMachine], object]
    arguments: dict[str, st.SearchStrategy[Any]]


VERBS: Final[dict[str, Verb]] = {}
# Left out of some runs, so that others see, say, a long life without a pause. The life cycle itself is never left out:
# that is why these are not Hypothesis rules, of which it disables more than half in every second run.
OPTIONAL: Final = (
    *("cancel", "redrive", "reprioritise", "discard", "pause", "limit", "move_clock", "upkeep", "sweep", "work"),
)


def _always(_: StoreMachine) -> bool:
    return True


def any_job(*states: State) -> Callable[[StoreMachine], bool]:
    """There is a job in one of these states: else a step would be spent on nothing."""
    return lambda at: any(job.state in states for job in at.model.jobs.values())


def verb(
    weight: int = 2, *, when: Callable[[StoreMachine], object] = _always, **arguments: st.SearchStrategy[Any]
) -> Callable[[T], T]:
    """Make a method of the machine one of its steps."""

    def add(method: T) -> T:
        name = method.__name__  # type: ignore[attr-defined]
        VERBS[name] = Verb(name, weight, when, arguments)
        return method

    return add


class Step:
    """A verb with its arguments; reads as the call it is. (A dataclass would be printed field by field.)"""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        self.name, self.arguments = name, arguments

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={_brief(value)}' for name, value in self.arguments.items())})"


def _brief(value: object) -> str:
    """A submission without the fields that are as they always are, a long body by its length; all else as it is."""
    if isinstance(value, list):
        return f"[{', '.join(map(_brief, value))}]"
    if isinstance(value, bytes) and len(value) > 10:
        return f"{value[:1]!r} * {len(value)}"
    if not isinstance(value, Submission):
        return repr(value)
    plain = Submission(tenant=value.tenant, topic=value.topic, id=value.id)
    told = [field.name for field in fields(value) if getattr(value, field.name) != getattr(plain, field.name)]
    parts = [f"{name}={_brief(getattr(value, name))}" for name in ("tenant", "topic", "id", *told)]
    return f"Submission({', '.join(parts)})"


@st.composite
def steps(draw: st.DrawFn) -> Step:
    at = draw(machine)
    possible = [one for one in VERBS.values() if one.name not in at.left_out and one.when(at)]
    chosen = draw(st.sampled_from([one for one in possible for _ in range(one.weight)]))
    return Step(chosen.name, {name: draw(values) for name, values in chosen.arguments.items()})
