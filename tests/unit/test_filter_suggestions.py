"""Suggestions while a filter is typed: the place of the caret, words of the language, stored values."""

from __future__ import annotations

import pytest

from headgate.domain.filter_parser import parse
from headgate.domain.filter_suggestions import SHOWN_MAX, Typed, of_values, typed_at, words
from headgate.domain.filters import Field
from headgate.domain.states import State

ID = "0190a3b2-7c4d-7abc-8def-0123456789ab"


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("", Typed(start=0)),
        ("sta", Typed(start=0, text="sta")),
        ("-sta", Typed(start=1, text="sta")),
        ("state:dead ", Typed(start=11)),
        ("state:dead to", Typed(start=11, text="to")),
        ("state:", Typed(start=6, field=Field.STATE)),
        ("state:dead,can", Typed(start=11, field=Field.STATE, text="can")),
        ("priority:>=hi", Typed(start=11, field=Field.PRIORITY, text="hi")),
        ("created:>", Typed(start=8, field=Field.CREATED, text=">")),
        ('tag:"very imp', Typed(start=4, field=Field.TAG, text="very imp")),
        ('tag:"a,b",c', Typed(start=10, field=Field.TAG, text="c")),
        (r"tag:a\,b", Typed(start=7, field=Field.TAG, text="b")),  # without quotes, a backslash is itself
        ('error:"timed out" -worker:w', Typed(start=26, field=Field.WORKER, text="w")),
        ("args.user.id:4", Typed(start=13, field=Field.ARGS, path=("user", "id"), text="4")),
        ("args.us", Typed(start=0, text="args.us")),
        ("queue:mail", Typed(start=0, text="queue")),
        ('"', Typed(start=0, text='"')),
    ],
)
def test_what_is_typed_is_found_at_the_caret(text: str, typed: Typed) -> None:
    assert typed_at(text, len(text)) == typed
    assert typed_at(text + " rest:of it", len(text)) == typed  # what follows the caret does not count


def test_every_field_and_every_state_is_suggested_by_the_language_itself() -> None:
    names = {
        one.text.rstrip(":.") for letter in "abcdefghijklmnopqrstuvwxyz" for one in words(Typed(start=0, text=letter))
    }
    assert names == {field.value for field in Field}
    assert {one.text for one in words(typed_at("state:", 6))} == {state.label for state in State}


@pytest.mark.parametrize(
    "text", ["state:", "priority:", "priority:>=", "attempts:>", "created:", "-due:", "finished:", "started:"]
)
def test_a_suggested_word_makes_a_filter_that_is_valid(text: str) -> None:
    typed = typed_at(text, len(text))
    assert words(typed)
    for one in words(typed):
        parse(text[: typed.start] + one.text)


@pytest.mark.parametrize("value", ["vip", "very important", 'say "no"', "a,b", "back\\slash", "star*", "-1", "ä", ""])
def test_a_stored_value_is_written_so_that_it_means_itself(value: str) -> None:
    typed = typed_at("worker:", 7)
    (one,) = of_values(typed, [value])
    (term,) = parse("worker:" + one.text).terms
    assert [str(found.parts[0]) for found in term.values] == [value]  # type: ignore[union-attr]


def test_what_begins_with_the_text_comes_before_what_contains_it() -> None:
    found = of_values(typed_at("topic:mail", 10), ["email", "mail.eu", "MAIL", "sms"])
    assert [one.text for one in found] == ["mail.eu", "MAIL", "email"]
    many = of_values(typed_at("topic:", 6), [f"topic-{number}" for number in range(100)])
    assert len(many) == SHOWN_MAX
