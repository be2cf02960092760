"""The numbers in SQL have their names beside them, and every function has a file of its own."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from headgate.domain import flags
from headgate.domain.bulk import Progress
from headgate.domain.dependencies import Met
from headgate.domain.flags import JobFlag
from headgate.domain.states import State
from headgate.domain.webhooks import DeliveryState
from tests.support.advisory_locks import NAMESPACE, AdvisoryLock

STORE = resources.files("headgate.store")
SOURCES = {
    entry.name: entry.read_text(encoding="utf-8")
    for folder in (STORE, STORE / "functions", STORE / "migrations")
    for entry in folder.iterdir()
    if entry.name.endswith((".sql", ".py"))
}
FLAG = re.compile(r"\bflags\s*[&|]\s*~?(\d+)(?:\s*/\*([^*]*)\*/)?")
STATE = re.compile(r"state(?: \+ 0)?\s*(?:=|<>|[<>]=?)\s*(\d)\b(?:\s*/\*([^*]*)\*/)?")
STATES = re.compile(r"state(?: \+ 0)? (?:NOT )?IN \(([\d, ]+)\)(?:\s*/\*([^*]*)\*/)?")
LOCK = re.compile(r"advisory_\w+\((\d+), *(\d+)(?:\s*/\*([^*]*)\*/)?\)")
MASKS = {
    name.lower(): int(value) for name, value in (*vars(flags).items(), *JobFlag.__members__.items()) if name.isupper()
}


def names_of(number: int) -> set[str]:
    """What a state's number may be called: a job's, a dependency's, a bulk operation's or a webhook delivery's."""
    kinds: tuple[type[State | Met | Progress | DeliveryState], ...] = (State, Met, Progress, DeliveryState)
    return {member.name.lower() for kind in kinds for member in kind if member == number}


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_flags_and_states_stand_beside_their_numbers(name: str) -> None:
    for number, said in FLAG.findall(SOURCES[name]):
        words = [word.strip() for word in re.split(r"[|,]", said)]
        assert any(word in MASKS for word in words), f"flags {number} has no name"
        assert sum(MASKS[word] for word in words if word in MASKS) == int(number), f"flags {number} is not {said}"
    for number, said in STATE.findall(SOURCES[name]):
        assert said.strip() in names_of(int(number)), f"state {number} is not {said or 'named'}"
    for numbers, said in STATES.findall(SOURCES[name]):
        if said.strip() == "the same":
            continue
        words = [word.strip() for word in said.split(",")]
        found = numbers.split(",")
        assert len(words) == len(found), f"states ({numbers}) are not {said or 'named'}"
        for number, word in zip(found, words, strict=True):
            assert word in names_of(int(number)), f"state {number} is not {word}"


@pytest.mark.parametrize("name", sorted(name for name in SOURCES if not re.match(r"\d{4}_", name)))
def test_a_file_holds_the_one_function_it_is_named_after(name: str) -> None:
    if name.endswith(".sql"):
        made = re.findall(r"^CREATE FUNCTION headgate\.(\w+)", SOURCES[name], re.MULTILINE)
        assert set(made) == {name.removesuffix(".sql")}


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_an_advisory_lock_is_one_of_the_table_and_named(name: str) -> None:
    for namespace, number, said in LOCK.findall(SOURCES[name]):
        assert int(namespace) == NAMESPACE
        assert AdvisoryLock(int(number)).name.lower() == said.strip()
