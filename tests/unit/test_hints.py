"""Hints from NOTIFY: what is no number of ours, and how many rounds any number of them brings about."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from headgate.dispatch.hints import TOPICS, Hints
from headgate.store.service import ANNOUNCED_MOST, topic_numbers


class Followed:
    def __init__(self) -> None:
        self.rounds: list[set[int]] = []
        self.all = 0
        self.news = asyncio.Event()
        self.hints = Hints(self._follow, self._follow_all)

    def _follow(self, numbers: Iterable[int]) -> None:
        self.rounds.append(set(numbers))
        self.news.set()

    def _follow_all(self) -> None:
        self.all += 1
        self.news.set()

    async def next(self) -> None:
        self.news.clear()
        async with asyncio.timeout(10):
            await self.news.wait()


async def test_the_first_hint_is_followed_at_once_and_those_after_it_together() -> None:
    followed = Followed()
    followed.hints.on_notify([7])
    assert followed.rounds == [{7}]
    for number in range(1_000):
        followed.hints.on_notify([number % 10, -3])
    assert len(followed.rounds) == 1
    await followed.next()
    assert followed.rounds[1:] == [{*range(10), -3}]
    await asyncio.sleep(0)
    assert len(followed.rounds) == 2
    followed.hints.on_notify([])
    assert followed.hints._timer is None


async def test_too_many_topics_are_forgotten_and_everything_is_looked_at() -> None:
    followed = Followed()
    followed.hints.on_notify([1])
    for number in range(3 * TOPICS):
        followed.hints.on_notify([number])
    assert len(followed.hints._waiting) == TOPICS + 1
    await followed.next()
    assert (followed.all, len(followed.rounds)) == (1, 1)


@pytest.mark.parametrize(
    ("payload", "numbers"),
    [
        ("1,-2,0", [1, -2, 0]),
        ("", []),
        (",,5,", [5]),
        ("x,1e3,0x10, 4,+4,--4,-,١,²,2147483647,99999999999999999999,7", [2147483647, 7]),
        ("9" * 7_999, []),
    ],
)
def test_what_is_no_number_is_left_out(payload: str, numbers: list[int]) -> None:
    assert topic_numbers(payload) == numbers


def test_no_more_numbers_are_taken_than_an_instance_sends() -> None:
    assert len(topic_numbers("1," * 4_000)) == ANNOUNCED_MOST
