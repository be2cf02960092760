"""Any filter that can be built can be written down and read back."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from headgate.domain import limits
from headgate.domain.errors import InvalidInput
from headgate.domain.filter_parser import parse
from headgate.domain.filters import SPAN_MAX, TIMES, Ago, Field, Glob, JobFilter, Op, Term, Value
from headgate.domain.states import State

WORDS = st.text(
    'abZ09 ,:"*\\<>=-._/@é…\u00a0', min_size=1, max_size=8
)  # all that means something, and some that does not
GLOBS = st.one_of(
    WORDS.map(lambda word: Glob((word,))),
    st.lists(WORDS, min_size=2, max_size=3).map(lambda parts: Glob(tuple(parts))),
    WORDS.map(lambda word: Glob((word, ""))),
    WORDS.map(lambda word: Glob(("", word))),
    WORDS.map(lambda word: Glob(("", word, ""))),
)
SPANS = st.integers(0, SPAN_MAX // timedelta(milliseconds=1)).map(lambda ms: Ago(timedelta(milliseconds=ms)))
MOMENTS = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))  # noqa: DTZ001
IDS = st.integers(0, 2**122 - 1).map(
    lambda n: UUID(int=(n >> 74) << 80 | 0x7 << 76 | (n >> 62 & 0xFFF) << 64 | 0b10 << 62 | n & (1 << 62) - 1)
)
VALUES: dict[Field, st.SearchStrategy[Value]] = {
    Field.ID: IDS,
    Field.STATE: st.sampled_from(State),
    Field.TOPIC: GLOBS,
    Field.TAG: WORDS,
    Field.WORKER: GLOBS,
    Field.PRIORITY: st.integers(limits.PRIORITY_MIN, limits.PRIORITY_MAX),
    Field.ATTEMPTS: st.integers(0, limits.MAX_ATTEMPTS_LIMIT),
    Field.ERROR: GLOBS,
    Field.ERROR_GROUP: st.from_regex(r"[0-9a-f]{12}", fullmatch=True),
    Field.CREATED: st.one_of(SPANS, MOMENTS),
    Field.DUE: st.one_of(SPANS, MOMENTS),
    Field.STARTED: st.one_of(SPANS, MOMENTS),
    Field.FINISHED: st.one_of(SPANS, MOMENTS),
    Field.SCHEDULE: WORDS,
    Field.KEY: WORDS,
    Field.UNIQUE: WORDS,
    Field.ARGS: st.one_of(st.just(""), WORDS),
}


@st.composite
def terms(draw: st.DrawFn) -> Term:
    field = draw(st.sampled_from(Field))
    compared = field in TIMES or (field in (Field.PRIORITY, Field.ATTEMPTS) and draw(st.booleans()))
    op = draw(st.sampled_from([Op.ABOVE, Op.FROM, Op.BELOW, Op.TO])) if compared else Op.IS
    values = draw(st.lists(VALUES[field], min_size=1, max_size=1 if compared else 4, unique=True))
    steps = st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True)
    return Term(
        field=field,
        op=op,
        values=tuple(values),
        negated=field is not Field.KEY and draw(st.booleans()),
        path=tuple(draw(st.lists(steps, min_size=1, max_size=4))) if field is Field.ARGS else (),
    )


@given(st.lists(terms(), max_size=4))
def test_a_filter_written_down_reads_back_as_itself(parts: list[Term]) -> None:
    built = JobFilter(tuple(parts))
    assert parse(str(built)) == built


@given(
    st.lists(st.text("ab*.\n", max_size=2), min_size=1, max_size=5).map(lambda parts: Glob(tuple(parts))),
    st.text("ab*.\n", max_size=8),
)
def test_a_pattern_matches_what_the_same_regular_expression_matches(pattern: Glob, text: str) -> None:
    same = re.fullmatch(".*".join(map(re.escape, pattern.parts)), text, re.DOTALL) is not None
    assert pattern.matches(text) is same


@given(st.text(max_size=60))
def test_no_text_at_all_does_more_than_be_refused(text: str) -> None:
    try:
        read = parse(text)
    except InvalidInput:
        return
    assert parse(str(read)) == read
