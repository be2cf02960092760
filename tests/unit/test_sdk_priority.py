"""Priority as a producer says it: left out, a number, a tier, and nothing else."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from headgate import Headgate, InvalidInput, Priority, PriorityTier
from headgate.domain.limits import PRIORITY_TIERS
from headgate.domain.validation import parse_priority
from headgate.sdk.options import Prepared, priority_of


async def test_a_call_without_the_option_is_what_it_was_and_with_it_the_wire_field_is_set() -> None:
    hg = Headgate()

    @hg.job("mail")
    async def send(to: str) -> None: ...

    with hg.testing() as box:
        await send.submit("a")
        await send.with_options(priority=10).submit("a")
        await hg.submit("mail", b"x")
        await hg.submit("mail", b"x", priority="urgent")
    assert [job.options.get("priority", 0) for job in box.submitted] == [0, 10, 0, "urgent"]
    assert inspect.signature(hg.submit).parameters["options"].kind is inspect.Parameter.VAR_KEYWORD
    raw = bytes(16)
    assert Prepared({}).new_job("mail", raw, b"").priority == 0
    assert Prepared({"priority": 10}).new_job("mail", raw, b"").priority == 10
    assert Prepared({}).plain
    assert Prepared({"priority": 10}).plain, "it needs nothing but the fast path"


@pytest.mark.req("O11")
@pytest.mark.parametrize(
    ("given", "number"),
    [
        ("bulk", -10),
        ("normal", 0),
        ("high", 10),
        ("urgent", 20),
        (Priority.BULK, -10),
        (Priority.URGENT, 20),
        (7, 7),
        (-(2**31), -(2**31)),
    ],
)
def test_tiers_and_numbers_name_the_same_priorities(given: int | PriorityTier, number: int) -> None:
    sent = priority_of(given)
    assert sent == number
    assert type(sent) is int
    assert Prepared({"priority": given}).new_job("mail", bytes(16), b"").priority == number


@pytest.mark.req("O11")
def test_the_tiers_are_the_same_everywhere() -> None:
    assert {tier.name.lower(): int(tier) for tier in Priority} == dict(PRIORITY_TIERS)
    for name, number in PRIORITY_TIERS.items():
        assert priority_of(parse_priority(name)) == priority_of(parse_priority(str(number))) == number


@pytest.mark.parametrize("given", ["High", "highest", "", True, 1.5, None, 2**31])
def test_anything_else_is_refused_before_the_network(given: Any) -> None:
    with pytest.raises(InvalidInput, match="priority"):
        priority_of(given)
