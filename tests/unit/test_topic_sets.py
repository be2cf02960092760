"""Patterns of topics: one matcher, in memory and in SQL."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.domain.errors import InvalidInput, TooLarge
from headgate.domain.topic_sets import TopicSet, check_topic_pattern, check_topic_patterns


@pytest.mark.parametrize(
    ("pattern", "topic", "matches"),
    [
        ("orders.*", "orders.eu", True),
        ("orders.*", "orders.eu.paid", True),
        ("orders.*", "orders.x", True),
        ("orders.*", "orders.", False),  # the star stands for at least one character
        ("orders.*", "orders", False),
        ("orders.*", "ordersXeu", False),  # the dot is a dot
        ("orders.*", "Orders.eu", False),
        ("orders.*", "my.orders.eu", False),
        ("orders*", "orders-eu", True),
        ("orders*", "orders", False),
        ("a_b*", "aXbc", False),  # no character of a pattern but the last is special
        ("orders", "orders", True),
        ("orders", "orders.eu", False),
    ],
)
def test_a_star_at_the_end_stands_for_one_or_more_characters(pattern: str, topic: str, matches: bool) -> None:
    found = TopicSet.of(pattern)
    assert (topic in found) is matches
    assert liked(topic, found) is matches


@pytest.mark.parametrize(
    ("wide", "narrow", "covered"),
    [
        (["orders.*"], ["orders.*"], True),
        (["orders.*"], ["orders.eu.*", "orders.us"], True),
        (["orders.*"], ["ord*"], False),
        (["orders.*"], ["orders*"], False),
        (["orders.*"], ["orders"], False),
        (["orders.*", "mail"], ["mail", "orders.eu"], True),
        (["orders.eu"], ["orders.*"], False),
        (["mail"], [], True),
        ([], ["mail"], False),
    ],
)
def test_a_set_covers_what_it_matches_as_a_whole(wide: list[str], narrow: list[str], covered: bool) -> None:
    found = TopicSet.of(*wide)
    assert found.covers(TopicSet.of(*narrow)) is covered
    assert all(liked(one, found) for one in narrow) is covered
    assert not found.covers(None), "no set of topics is the whole tenant"


NAMES = st.from_regex(r"[a-c][a-c._]{0,4}", fullmatch=True)


@given(patterns=st.lists(st.one_of(NAMES, NAMES.map(lambda one: f"{one}*"))), topic=NAMES)
def test_memory_and_sql_agree(patterns: list[str], topic: str) -> None:
    found = TopicSet.of(*patterns)
    by_hand = any(topic == one or (one[-1] == "*" and topic[: len(one) - 1] == one[:-1] != topic) for one in patterns)
    assert (topic in found) is by_hand is liked(topic, found)


@pytest.mark.parametrize("wrong", ["*orders", "or*ders", "orders.**", ".*", "or ders*", "", "-*", "a//*"])
def test_a_star_elsewhere_and_other_names_are_refused(wrong: str) -> None:
    with pytest.raises(InvalidInput, match="topics"):
        check_topic_pattern(wrong)


def test_a_star_alone_is_every_topic_and_the_number_of_patterns_is_bounded() -> None:
    assert check_topic_patterns(["mail", "*"]) is None
    assert check_topic_patterns(["mail", "b*"]) == TopicSet.of("b*", "mail")
    with pytest.raises(TooLarge, match="1001 topics"):
        check_topic_patterns([f"t{number}" for number in range(1_001)])


def liked(topic: str, found: TopicSet) -> bool:
    """What LIKE ANY says, by a translation of its own."""
    return any(re.fullmatch(_regex(one), topic) for one in found.like)


def _regex(like: str) -> str:
    parts = re.findall(r"\\.|.", like)
    return "".join(".*" if one == "%" else "." if one == "_" else re.escape(one[-1]) for one in parts)
