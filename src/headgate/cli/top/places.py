"""Where the user is, and how one gets from one place to another."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Final

from headgate.cli.lists import NameFilter
from headgate.domain.errors import InvalidInput
from headgate.domain.filter_parser import parse
from headgate.domain.filters import Field, quoted
from headgate.domain.validation import shown


class View(StrEnum):
    """What a place shows. The first six are lists, in the order of their keys."""

    TOPICS = "Topics"
    JOBS = "Jobs"
    WORKERS = "Workers"
    SCHEDULES = "Schedules"
    DEAD = "Dead letters"
    OPERATIONS = "Operations"
    JOB = "Job"
    LOG = "Log"
    EVENTS = "Events"
    SCHEDULE = "Schedule"
    OPERATION = "Operation"


LISTS: Final = tuple(View)[:6]
FIELDS: Final = {
    View.TOPICS: (Field.TOPIC,),
    View.WORKERS: (Field.WORKER, Field.TOPIC),
    View.SCHEDULES: (Field.SCHEDULE, Field.TOPIC),
    View.DEAD: (Field.TOPIC,),
}
"""The fields that a filter of a list may have; of jobs all."""
_COMMANDS: Final = {
    **dict.fromkeys(("topics", "topic", "t"), View.TOPICS),
    **dict.fromkeys(("jobs", "job", "j"), View.JOBS),
    **dict.fromkeys(("workers", "worker", "w"), View.WORKERS),
    **dict.fromkeys(("schedules", "schedule", "s"), View.SCHEDULES),
    **dict.fromkeys(("dead", "dead-letters", "d"), View.DEAD),
    **dict.fromkeys(("operations", "bulk", "op", "o"), View.OPERATIONS),
}
_OTHERS: Final = ("filter", "interval", "help", "quit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A view, and what it is about: the filter of a list, or the id or name of one thing."""

    view: View
    filter: str = ""
    subject: str = ""

    @property
    def is_list(self) -> bool:
        """Whether it is one of the six lists."""
        return self.view in LISTS

    @property
    def title(self) -> str:
        """The view, and what it is about."""
        return f"{self.view} {self.subject}".strip()


def filtered(view: View, text: str) -> Place:
    """A list with a filter; raises InvalidFilter.

    A text without a field is a part of the name: of the topic, for jobs.
    """
    text = text.strip()
    if view is View.JOBS:
        if text and ":" not in text:
            text = f"topic:*{quoted(text.strip('*'))}*"
        return Place(view=view, filter=str(parse(text)))
    if ":" in text:
        NameFilter(text, *FIELDS.get(view, ()))
    return Place(view=view, filter=text)


def jobs_of(field: Field, name: str, *, state: str = "") -> Place:
    """The jobs of a topic, a worker or a schedule."""
    states = f" state:{state}" if state else ""
    return filtered(View.JOBS, f"{field.value}:{quoted(name)}{states}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What the user has typed after `:`: a place to go to, or a word with its argument."""

    place: Place | None = None
    word: str = ""
    argument: str = ""


def command_of(text: str, *, here: Place) -> Command:
    """Read a command; raises InvalidInput for an unknown one, InvalidFilter for its filter."""
    word, _, rest = text.strip().partition(" ")
    name = word.lower()
    if name in _COMMANDS:
        return Command(place=filtered(_COMMANDS[name], rest))
    if name == "filter":
        return Command(place=filtered(here.view if here.is_list else View.JOBS, rest))
    if name in ("q", "q!", "exit"):
        return Command(word="quit")
    if name in _OTHERS:
        return Command(word=name, argument=rest.strip())
    known = [*_COMMANDS, *_OTHERS]
    near = get_close_matches(name, [one for one in known if len(one) > 2], n=1)
    hint = f'did you mean "{near[0]}"?' if near else "? lists the commands"
    raise InvalidInput("command", f"there is no {shown(word)}", hint=hint)
