"""The filter language: what it means, and what it says to those who mistype it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headgate.domain import limits
from headgate.domain.bulk import Plan, Verb
from headgate.domain.errors import InvalidInput, TooLarge
from headgate.domain.filter_parser import parse, topic_term
from headgate.domain.filters import (
    PATTERNS_MAX,
    WILDCARDS_MAX,
    Ago,
    Field,
    Glob,
    InvalidFilter,
    JobFilter,
    Op,
    Term,
    body_matches,
    moment_of,
)
from headgate.domain.states import State

ID = "0190a3b2-7c4d-7abc-8def-0123456789ab"


def one(text: str) -> Term:
    (term,) = parse(text).terms
    return term


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("  state:dead  ", "state:dead"),
        ("state:dead,cancelled,dead", "state:dead,cancelled"),
        ("-state:dead topic:mail*", "-state:dead topic:mail*"),
        ("topic:a**b", "topic:a*b"),
        ('tag:"vip"', "tag:vip"),
        ('tag:"very important",b', 'tag:"very important",b'),
        (r'error:"said \"no\" \\ twice"', r'error:"said \"no\" \\ twice"'),
        ('worker:"a*b"*', 'worker:"a*b"*'),
        ('worker:""', 'worker:""'),
        ("priority:>=5", "priority:>=5"),
        ("priority:>=high", "priority:>=10"),
        ("priority:-10,bulk", "priority:-10"),
        ("attempts:>1", "attempts:>1"),
        ("created:>2h", "created:>2h"),
        ("created:<90m", "created:<1h30m"),
        ("created:>1w2d3h4m5s6ms", "created:>1w2d3h4m5s6ms"),
        ("finished:<2026-01-01", "finished:<2026-01-01T00:00:00Z"),
        ("due:<=2026-01-01T10:00+01:00", "due:<=2026-01-01T09:00:00Z"),
        (f"id:{ID}", f"id:{ID}"),
        ("error_group:0123456789ab", "error_group:0123456789ab"),
        ("args.user.id:42", "args.user.id:42"),
        ("args.items.0.sku:x-1", "args.items.0.sku:x-1"),
        ("key:order-7 schedule:nightly", "key:order-7 schedule:nightly"),
        ('-unique:"user 42"', '-unique:"user 42"'),
    ],
)
def test_a_filter_is_written_back_in_one_form(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical
    assert parse(canonical) == parse(text)


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("queue:mail", 0, 'there is no "queue"; did you mean "topic"?'),
        ("kind:mail", 0, 'did you mean "topic"?'),
        ("status:dead", 0, 'did you mean "state"?'),
        ("topc:mail", 0, 'did you mean "topic"?'),
        ("state:dead priorty:5", 11, 'did you mean "priority"?'),
        ("zzz:1", 0, "there are id, state, topic"),
        ("state:failed", 6, "'failed' is no state; did you mean \"dead\"?"),
        ("state:dead,runing", 11, 'did you mean "running"?'),
        ("state:canceled", 6, 'did you mean "cancelled"?'),
        ("timeout", 0, "'timeout' has no field; write error:timeout"),
        ("state:", 6, "state has no value"),
        ("state:dead,", 11, "state has no value"),
        (":x", 0, "has no field"),
        ("-", 1, "has no field"),
        ("9lives:x", 0, "'9lives' is no field"),
        ('error:"open', 6, "a quote is not closed"),
        (r'error:"a\b"', 8, "stands before a quote"),
        ("state:>dead", 6, 'state cannot be compared by ">"'),
        ("priority:>1,2", 12, '">" takes one value'),
        ("priority:x", 9, "is no number from"),
        ("priority:99999999999", 9, "is no number from"),
        ("attempts:-1", 9, "is no number from 0"),
        ("created:2h", 8, "created needs a comparison; created:>2h is the last two hours"),
        ("created:>soon", 9, "is no time; write a span"),
        ("created:>2026-13-01", 9, "is no time"),
        ("created:>2026-01-01T10:00", 9, "has no time zone; write 2026-01-01T10:00Z"),
        ("created:>9999w", 9, "more than 3650 days"),
        ("tag:vip*", 4, "tag takes no wildcard"),
        ("id:nope", 3, "'nope' is no job id"),
        ("error_group:xyz", 12, "headgate dead list"),
        ("args:1", 0, "args needs a name; for example args.user.id:42"),
        ("topic.x:1", 0, "topic has no parts"),
        ("-key:a", 1, "key cannot be turned round"),
        ("args.a.b.c.d.e.f.g.h.i.j.k:1", 0, "a path of more than 10 steps"),
        ("state:dead\x00", 10, "U+0000"),
        (" ".join(["attempts:1"] * 51), 550, "more than 50 terms"),
        ("topic:" + "*a" * 40 + "*b", 6, "the value has 41 wildcards; the limit is 10"),
        ("state:dead error:" + "x*" * 11, 17, "the value has 11 wildcards; the limit is 10"),
        (" ".join(["worker:w*"] * 21), 200, "more than 20 values with a wildcard or of error"),
        ("topic:a,b,c error:" + ",".join(map(str, range(21))), 12, "more than 20 values with a wildcard or of error"),
    ],
)
def test_a_bad_filter_is_refused_with_place_and_advice(text: str, position: int, words: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        parse(text)
    assert words in str(caught.value)
    assert caught.value.position == position
    assert f"at character {position + 1}:" in str(caught.value)


def test_an_endless_filter_and_what_is_no_text_are_refused() -> None:
    with pytest.raises(TooLarge, match="filter"):
        parse("x" * 4_001)
    with pytest.raises(InvalidInput, match="filter: must be a str"):
        parse(b"state:dead")


def test_the_longest_span_and_the_longest_path_are_accepted() -> None:
    assert one("created:>3650d").values == (Ago(timedelta(days=3650)),)
    assert len(one("args.a.b.c.d.e.f.g.h.i.j:1").path) == 10


def test_later_is_always_above_whether_the_time_is_a_span_or_a_date() -> None:
    """`created:>2h` is the last two hours; an older job matches `created:<2h`."""
    now = datetime(2026, 7, 1, 12, tzinfo=UTC)
    span, date = one("created:>2h"), one("created:>2026-07-01")
    assert (span.op, moment_of(span.values[0], now=now)) == (Op.ABOVE, now - timedelta(hours=2))
    assert (date.op, moment_of(date.values[0], now=now)) == (Op.ABOVE, datetime(2026, 7, 1, tzinfo=UTC))
    assert str(Ago(timedelta(0))) == "0s"


def test_a_wildcard_stands_for_any_text_and_a_quoted_one_for_itself() -> None:
    (bare,) = one("worker:a*c").values
    (quoted,) = one('worker:"a*c"').values
    assert isinstance(bare, Glob)
    assert isinstance(quoted, Glob)
    assert [bare.matches(text) for text in ("abc", "ac", "a*c", "abcd", "xac")] == [True, True, True, False, False]
    assert [quoted.matches(text) for text in ("abc", "a*c")] == [False, True]


@pytest.mark.parametrize(
    ("text", "fits"), [("ab", False), ("abab", True), ("abb", True), ("aabb", True), ("ba", False)]
)
def test_no_letter_of_a_text_stands_for_two_parts_of_a_pattern(text: str, fits: bool) -> None:
    assert Glob(("", "ab", "b")).matches(text) is fits


class Counted(str):
    """A text that counts how often it is searched."""

    searches = 0

    def find(self, *given: object) -> int:  # type: ignore[override]
        self.searches += 1
        return str.find(self, *given)  # type: ignore[arg-type]

    def startswith(self, *given: object) -> bool:  # type: ignore[override]
        self.searches += 1
        return str.startswith(self, *given)  # type: ignore[arg-type]

    def endswith(self, *given: object) -> bool:  # type: ignore[override]
        self.searches += 1
        return str.endswith(self, *given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("end", "fits"), [("b", False), ("", True)])
def test_a_pattern_searches_a_text_once_for_each_of_its_parts(
    monkeypatch: pytest.MonkeyPatch, end: str, fits: bool
) -> None:
    """`*a` 40 times and `*b`: a backtracking matcher tries every way to deal the a's out, which takes forever."""
    small = Counted("xax")
    assert Glob(("", "a", "")).matches(small)
    assert small.searches == 3  # its searches are those that are counted
    monkeypatch.setattr("headgate.domain.filters.WILDCARDS_MAX", 100)
    pattern = Glob(("", *["a"] * 40, end))
    text = Counted("a" * 200)
    assert pattern.matches(text) is fits
    assert text.searches <= len(pattern.parts)


def test_no_pattern_has_more_wildcards_than_the_limit() -> None:
    attack = "*a" * 40 + "*b"
    assert Glob(tuple("a" * (WILDCARDS_MAX + 1))).matches("a" * (WILDCARDS_MAX + 1))
    with pytest.raises(InvalidInput, match="41 wildcards; the limit is 10"):
        Glob(tuple(attack.split("*")))
    with pytest.raises(InvalidInput, match="topic: has 41 wildcards; the limit is 10"):
        topic_term(attack)


def test_a_topic_by_itself_is_read_as_the_filter_reads_it() -> None:
    assert topic_term("mail*") == one("topic:mail*")
    assert topic_term("a**b") == one("topic:a*b")
    assert topic_term('a "b", c') == one(r'topic:"a \"b\", c"')
    with pytest.raises(TooLarge, match="topic"):
        topic_term("a" * (limits.TOPIC_MAX_CHARS + 1))
    with pytest.raises(InvalidInput, match="topic: must be a str"):
        topic_term(7)


def test_plain_names_are_no_patterns() -> None:
    assert len(one("topic:" + ",".join(f"t{n}" for n in range(100))).values) == 100 > PATTERNS_MAX


@pytest.mark.parametrize("text", [" ".join(["attempts:1"] * 50), "tag:" + "x" * 3_990])
def test_an_operation_whose_filter_could_not_be_read_again_is_refused_at_once(text: str) -> None:
    """It is stored with the states that are meant, which makes it longer than what was given."""
    parse(text)
    with pytest.raises(InvalidInput, match="filter"):
        Plan(verb=Verb.CANCEL, matching=parse(text))


def test_the_states_left_open_follow_all_state_terms() -> None:
    assert parse("").states == frozenset(State)
    assert parse("state:dead,pending -state:pending").states == {State.DEAD}
    assert parse("state:dead state:pending").states == frozenset()


def test_terms_can_be_put_in_front() -> None:
    wider = JobFilter().also(Term(field=Field.STATE, values=(State.DEAD,)))
    assert str(wider) == "state:dead"


@pytest.mark.parametrize(
    ("text", "body", "matches"),
    [
        ("args.user.id:42", {"user": {"id": 42}}, True),
        ("args.user.id:42", {"user": {"id": "42"}}, True),
        ("args.user.id:42", {"user": {"id": 42.0}}, True),
        ("args.user.id:42", {"user": {"id": 43}}, False),
        ("args.user.id:42", {"user": 42}, False),
        ("args.user.id:42", [1, 2], False),
        ("-args.user.id:42", {"user": {"id": 42}}, False),
        ("-args.user.id:42", {}, True),
        ("args.on:true", {"on": True}, True),
        ("args.on:1", {"on": True}, False),
        ("args.none:null", {"none": None}, True),
        ("args.items.1:b", {"items": ["a", "b"]}, True),
        ("args.items.9:b", {"items": ["a", "b"]}, False),
        ("args.items.2:b", {"items": ["a", "b"]}, False),
        ("args.a:x", {"a": {"x": 1}}, False),
        ("args.a:x", {"a": 1}, False),
        ('args.a:""', {"a": ""}, True),
        ("args.a:x,y", {"a": "y"}, True),
    ],
)
def test_a_path_leads_into_the_payload(text: str, body: object, matches: bool) -> None:
    assert body_matches(one(text), body) is matches


def test_every_filter_in_the_reference_is_one_and_every_field_is_in_it() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/filters.md").read_text()
    examples = re.findall(r"^```filter\n(.*?)\n```", text, flags=re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `(\w+)(?:\.PATH)?` \|.*\| `(.*)` \|$", text, flags=re.MULTILINE)
    assert {name for name, _ in rows} == set(Field)
    for name, example in rows:
        assert one(example).field == name
    for example in [*examples, *re.findall(r"`((?:created|tag):[^`*]*)`", text)]:
        parse(example)
    for mistake in re.findall(r"^filter: (.*)$", text, flags=re.MULTILINE):
        wrong = "queue:mail" if "queue" in mistake else "state:failed"
        with pytest.raises(InvalidFilter) as caught:
            parse(wrong)
        assert str(caught.value) == f"filter: {mistake}"
