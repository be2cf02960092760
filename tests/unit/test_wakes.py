"""Wakes from NOTIFY: what is no event of ours, and how many rounds any number of them brings about."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from headgate.dispatch.listener import AGAIN_SECONDS, WAKES_MAX, PacedWakes
from headgate.domain.wakes import (
    EVENTS_MAX,
    ControlChanged,
    JobReturned,
    JobsDue,
    TopicReady,
    TopicSubmitted,
    Wake,
    decode,
    encode,
)


class Followed:
    def __init__(self) -> None:
        self.rounds: list[set[Wake]] = []
        self.all = 0
        self.news = asyncio.Event()
        self.paced = PacedWakes(self._follow, self._follow_all)

    def _follow(self, wakes: Iterable[Wake]) -> None:
        self.rounds.append(set(wakes))
        self.news.set()

    def _follow_all(self) -> None:
        self.all += 1
        self.news.set()

    async def next(self) -> None:
        self.news.clear()
        async with asyncio.timeout(10):
            await self.news.wait()


async def test_the_first_wake_is_followed_at_once_and_those_after_it_together() -> None:
    followed = Followed()
    followed.paced.on_notify([TopicReady(7)])
    assert followed.rounds == [{TopicReady(7)}]
    for number in range(1_000):
        followed.paced.on_notify([TopicReady(number % 10 + 1), JobReturned(3)])
    assert len(followed.rounds) == 1
    await followed.next()
    assert followed.rounds[1:] == [{*map(TopicReady, range(1, 11)), JobReturned(3)}]
    await asyncio.sleep(0)
    assert len(followed.rounds) == 2
    followed.paced.on_notify([])
    assert followed.paced._timer is None


async def test_a_wake_of_an_application_is_followed_once_more_and_then_no_more() -> None:
    followed = Followed()
    followed.paced.on_notify([TopicSubmitted(7), TopicReady(8), JobsDue()])
    assert followed.rounds == [{TopicSubmitted(7), TopicReady(8), JobsDue()}]
    began = asyncio.get_running_loop().time()
    await followed.next()
    assert followed.rounds[1:] == [{TopicReady(7), JobsDue()}]
    assert asyncio.get_running_loop().time() - began >= AGAIN_SECONDS, "when others have had time to commit"
    assert followed.paced._again_timer is None


async def test_a_wake_shortly_before_the_second_look_of_another_gets_its_own() -> None:
    followed = Followed()
    followed.paced.on_notify([TopicSubmitted(7)])
    followed.paced.on_notify([TopicSubmitted(8)])  # followed a moment later
    while len(followed.rounds) < 4:
        await followed.next()
    assert followed.rounds == [{TopicSubmitted(7)}, {TopicSubmitted(8)}, {TopicReady(7)}, {TopicReady(8)}]
    assert followed.paced._again_timer is None


async def test_too_many_topics_are_forgotten_and_everything_is_looked_at() -> None:
    followed = Followed()
    followed.paced.on_notify([TopicReady(1)])
    for number in range(3 * WAKES_MAX):
        followed.paced.on_notify([TopicReady(number)])
    assert len(followed.paced._waiting) == WAKES_MAX + 1
    await followed.next()
    assert (followed.all, len(followed.rounds)) == (1, 1)


@pytest.mark.parametrize(
    ("payload", "wakes"),
    [
        ("1,r2,control,s3,due", [TopicReady(1), JobReturned(2), ControlChanged(), TopicSubmitted(3), JobsDue()]),
        ("", []),
        (",,5,", [TopicReady(5)]),
        (
            "x,1e3,0x10, 4,+4,-4,-,r,rr4,r-4,0,r0,s,ss4,rs4,s0,١,²,2147483647,99999999999999999999,r7",
            [TopicReady(2147483647), JobReturned(7)],
        ),
        ("9" * 7_999, []),
    ],
)
def test_what_is_no_event_is_left_out(payload: str, wakes: list[Wake]) -> None:
    assert decode(payload) == wakes


def test_events_arrive_as_they_were_sent() -> None:
    sent = [ControlChanged(), TopicReady(3), JobReturned(2), TopicReady(3), JobsDue(), TopicSubmitted(4)]
    assert encode(sent) == "control,3,due,r2,s4"
    assert set(decode(encode(sent))) == set(sent)


def test_no_more_events_are_taken_than_an_instance_sends() -> None:
    assert len(decode("1," * 4_000)) == EVENTS_MAX
    assert len(decode(encode(map(TopicReady, range(1, 4_000))))) == EVENTS_MAX
