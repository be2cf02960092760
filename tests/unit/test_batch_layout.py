"""The drawing of a batch: each job after those that it waits for, jobs that stand alike together, and a bound."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from uuid import UUID

from headgate.domain.batch_graph import BatchGraph, BatchMember, Edge
from headgate.domain.dependencies import BatchStatus, Needs
from headgate.domain.states import State
from headgate.web.batch_layout import BOXES_MAX, Layout, layout_of

NOW = datetime(2026, 11, 16, tzinfo=UTC)
DONE = UUID(int=999)


def graph(members: list[tuple[int, str, State]], edges: list[tuple[int, int]], *, callback: bool = False) -> BatchGraph:
    return BatchGraph(
        batch=BatchStatus(
            id=UUID(int=1000),
            name="",
            needs=Needs.ENDED,
            created_at=NOW,
            expires_at=NOW,
            sealed_at=NOW,
            expired=False,
            total=len(members),
            counted=len(members),
            callback_id=DONE if callback else None,
            callback_state=State.BLOCKED if callback else None,
        ),
        members=[BatchMember(id=UUID(int=no), topic=topic, state=state) for no, topic, state in members],
        edges=[Edge(parent=UUID(int=start), child=UUID(int=end), met=False) for start, end in edges],
    )


def test_each_job_is_right_of_those_that_it_waits_for() -> None:
    made = layout_of(
        graph(
            [(1, "extract", State.COMPLETED), (2, "load", State.PENDING), (3, "check", State.BLOCKED)],
            [(1, 2), (2, 3), (1, 3)],
        )
    )
    x = {box.label: box.x for box in made.boxes}
    assert x["extract"] < x["load"] < x["check"]
    assert len(made.lines) == 3
    assert all(box.x + 196 <= made.width and box.y + 52 <= made.height for box in made.boxes)


def test_jobs_that_stand_alike_are_one_box_that_shows_the_worst_of_them() -> None:
    members = [(1, "extract", State.COMPLETED), *((no, "resize", State.COMPLETED) for no in range(2, 8))]
    members.append((8, "resize", State.DEAD))
    made = layout_of(graph(members, [(1, no) for no in range(2, 9)]))
    (group,) = [box for box in made.boxes if box.count > 1]
    assert (group.label, group.count, group.state) == ("resize", 7, State.DEAD)
    assert group.states == "6 completed, 1 dead"
    assert len(made.lines) == 1


def test_the_callback_is_last_and_waits_for_what_nothing_else_waits_for() -> None:
    made = layout_of(graph([(1, "a", State.COMPLETED), (2, "b", State.COMPLETED)], [(1, 2)], callback=True))
    (last,) = [box for box in made.boxes if box.callback]
    assert last.x == max(box.x for box in made.boxes)
    assert [line.met for line in made.lines] == [False, True], "the batch is sealed and its last member has ended"


def test_too_many_different_jobs_are_not_drawn_and_an_empty_batch_is_nothing() -> None:
    many = [(no, f"topic-{no}", State.PENDING) for no in range(1, BOXES_MAX + 2)]
    assert layout_of(graph(many, [])) == Layout()
    assert layout_of(graph([], [])) == Layout()


def test_boxes_of_a_column_do_not_overlap() -> None:
    made = layout_of(graph([(no, f"t{no}", State.PENDING) for no in range(1, 9)], []))
    tops = sorted(box.y for box in made.boxes)
    assert all(after - before >= 52 for before, after in pairwise(tops))
