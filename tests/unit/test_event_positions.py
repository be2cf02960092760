"""Positions of a stream of events, and which events it sends."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.domain.errors import InvalidInput, TooLarge
from headgate.domain.events import POSITION_MAX_CHARS, EventFilter, Position, StreamEvent
from headgate.domain.ids import JobId
from headgate.domain.limits import HTTP_HEADERS_MAX_BYTES

AT = datetime(2026, 1, 1, tzinfo=UTC)


def event(**values: object) -> StreamEvent:
    given: dict[str, object] = {"id": "j1", "kind": "job.failed", "at": AT, "tenant_no": 1, "xid": 7, "topic": "mail"}
    return StreamEvent(**(given | values))  # type: ignore[arg-type]


def test_a_position_shows_what_was_committed_when_it_was_taken() -> None:
    position = Position.of("10:20:12,15", at_ms=5, restores=0)
    assert [xid for xid in range(8, 22) if position.shows(xid)] == [8, 9, 10, 11, 13, 14, 16, 17, 18, 19]


@given(
    running=st.sets(st.integers(10, 40), max_size=8),
    after=st.integers(0, 5),
    cut=st.integers(5, 60),
)
def test_a_position_that_is_cut_shows_the_same_up_to_there_and_nothing_after(
    running: set[int], after: int, cut: int
) -> None:
    xmax = max(running, default=20) + 1 + after
    whole = Position(at_ms=1, restores=0, xmin=min(running, default=xmax), xmax=xmax, running=tuple(sorted(running)))
    if cut >= xmax:
        return
    part = whole.cut(cut)
    for xid in range(1, 70):
        assert part.shows(xid) == (whole.shows(xid) and xid <= cut)
    assert Position.parse(str(part)) == part


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1.2",
        "1.0.5:4:",
        "1.0.0:4:",
        "1.0.3:9:8,4",
        "1.0.3:9:2",
        "1.0.3:9:9",
        "1.0.3:9:4,",
        "1.0.3:9:4,4",
        "٣.0.3:9:",
    ],
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Position.parse(text)
    assert refused.value.field == "last_event_id"


def test_a_position_has_a_longest_form() -> None:
    with pytest.raises(TooLarge):
        Position.parse("1.0.3:9:" + "4," * 10_000)


def test_a_position_that_is_too_long_is_cut_and_shows_nothing_more() -> None:
    running = tuple(range(5_000_000_000, 5_000_004_000, 2))
    whole = Position(at_ms=1, restores=0, xmin=running[0], xmax=running[-1] + 1, running=running)
    text = str(whole)
    assert POSITION_MAX_CHARS - 30 < len(text) <= POSITION_MAX_CHARS < HTTP_HEADERS_MAX_BYTES
    part = Position.parse(text)
    assert part.running == running[: len(part.running)]
    assert part.xmax == running[len(part.running)]
    assert all(whole.shows(xid) for xid in range(running[0] - 3, running[-1] + 3) if part.shows(xid))


def test_a_filter_selects_by_topic_job_kind_and_batch() -> None:
    job = JobId(uuid4())
    one = event(job_id=job)
    assert EventFilter().matches(one, ())
    assert EventFilter(topics=frozenset({"mail"}), jobs=frozenset({job}), kinds=frozenset({"job.failed"})).matches(
        one, ()
    )
    assert not EventFilter(topics=frozenset({"pay"})).matches(one, ())
    assert not EventFilter(jobs=frozenset({uuid4()})).matches(one, ())
    assert not EventFilter(kinds=frozenset({"job.completed"})).matches(one, ())
    batch = EventFilter(batch=uuid4())
    assert batch.matches(one, {job})
    assert not batch.matches(one, ())


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"kinds": frozenset({"job.finished"})}, "kind"),
        ({"topics": frozenset({"no topic!"})}, "topic"),
        ({"topics": frozenset(f"t{n}" for n in range(101))}, "topic"),
        ({"jobs": frozenset(uuid4() for _ in range(101))}, "job_id"),
    ],
)
def test_a_filter_that_cannot_be_is_refused_by_field(values: dict[str, frozenset[object]], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        EventFilter(**values)  # type: ignore[arg-type]
    assert refused.value.field == field
