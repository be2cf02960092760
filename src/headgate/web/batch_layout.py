"""A batch as a drawing: its jobs from left to right, each after those that it waits for. Pure: no clock, no I/O.

Jobs that have the same topic, wait for the same jobs and are waited for by the same ones are one box with a count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from headgate.domain.batch_graph import BatchGraph, BatchMember
from headgate.domain.dependencies import waves
from headgate.domain.states import State

ALIKE: Final = 4
"""From this number on, jobs of the same topic and dependencies share one box."""
BOXES_MAX: Final = 60
"""More boxes are not drawn: the list has all of them."""
WIDTH, HEIGHT = 196, 52
GAP_X, GAP_Y, MARGIN = 72, 16, 12
LABEL_CHARS: Final = 22
_WORST: Final = (State.DEAD, State.CANCELLED, State.RUNNING, State.RETRYING, State.PENDING, State.SCHEDULED)


@dataclass(slots=True, kw_only=True)
class Box:
    """One job, several that stand alike, or the callback."""

    members: Sequence[BatchMember]
    callback: bool = False
    x: int = 0
    y: int = 0

    @property
    def label(self) -> str:
        text = self.members[0].topic or "removed"
        return text if len(text) <= LABEL_CHARS else f"{text[: LABEL_CHARS - 1]}…"

    @property
    def count(self) -> int:
        return len(self.members)

    @property
    def state(self) -> State | None:
        """Of several jobs the one that needs most attention."""
        found = {one.state for one in self.members}
        return next((one for one in _WORST if one in found), self.members[0].state)

    @property
    def states(self) -> str:
        """In words: `3 completed, 1 dead`."""
        counted = Counter("removed" if one.state is None else one.state.label for one in self.members)
        if self.count == 1:
            return next(iter(counted))
        return ", ".join(f"{count} {name}" for name, count in counted.most_common())


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """From one box to another. `met`: it does not wait for that one any more."""

    path: str
    met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The drawing; without boxes there is nothing to draw, or too much."""

    boxes: Sequence[Box] = ()
    lines: Sequence[Line] = ()
    width: int = 0
    height: int = 0


def layout_of(graph: BatchGraph) -> Layout:
    """Draw a batch."""
    known = {one.id for one in graph.members}
    parents: dict[UUID, set[UUID]] = {one.id: set() for one in graph.members}
    children: dict[UUID, set[UUID]] = {one.id: set() for one in graph.members}
    met = {(edge.parent, edge.child): edge.met for edge in graph.edges}
    for edge in graph.edges:
        if edge.parent in known and edge.child in known:
            parents[edge.child].add(edge.parent)
            children[edge.parent].add(edge.child)
    boxes = _boxes(graph.members, parents, children)
    if not boxes or len(boxes) > BOXES_MAX:
        return Layout()
    box_of = {one.id: index for index, box in enumerate(boxes) for one in box.members}
    before: list[set[int]] = [{box_of[parent] for one in box.members for parent in parents[one.id]} for box in boxes]
    pairs = {
        (box_of[parent], box_of[child]): all(
            done
            for (one, other), done in met.items()
            if box_of.get(one) == box_of[parent] and box_of.get(other) == box_of[child]
        )
        for parent, child in met
        if parent in box_of and child in box_of
    }
    columns = _columns(before)
    callback = graph.batch.callback_id
    if callback is not None:
        last = {index for index in range(len(boxes)) if not any(start == index for start, _ in pairs)}
        done = graph.batch.sealed_at is not None
        pairs |= {(index, len(boxes)): done and _ended(boxes[index]) for index in last}
        boxes.append(
            Box(members=[BatchMember(id=callback, topic="on done", state=graph.batch.callback_state)], callback=True)
        )
        columns.append([len(boxes) - 1])
    _place(boxes, columns, before)
    return Layout(
        boxes=boxes,
        lines=[Line(path=_path(boxes[start], boxes[end]), met=done) for (start, end), done in sorted(pairs.items())],
        width=2 * MARGIN + len(columns) * WIDTH + (len(columns) - 1) * GAP_X,
        height=2 * MARGIN + max(len(column) for column in columns) * (HEIGHT + GAP_Y) - GAP_Y,
    )


def _boxes(
    members: Sequence[BatchMember], parents: Mapping[UUID, set[UUID]], children: Mapping[UUID, set[UUID]]
) -> list[Box]:
    alike: dict[tuple[str, frozenset[UUID], frozenset[UUID]], list[BatchMember]] = {}
    for one in members:
        alike.setdefault((one.topic, frozenset(parents[one.id]), frozenset(children[one.id])), []).append(one)
    return [
        Box(members=part)
        for group in alike.values()
        for part in ([group] if len(group) >= ALIKE else [[one] for one in group])
    ]


def _columns(before: Sequence[set[int]]) -> list[list[int]]:
    """Each box one column after the last of those that it waits for."""
    ids = [UUID(int=index + 1) for index in range(len(before))]
    found, circle = waves(ids, [[ids[parent] for parent in mine] for mine in before])
    return [list(column) for column in found] + ([circle] if circle else [])


def _place(boxes: Sequence[Box], columns: Sequence[list[int]], before: Sequence[set[int]]) -> None:
    """Beside what it waits for, so that few lines cross; columns are centred."""
    tallest = max(len(column) for column in columns)
    row_of: dict[int, float] = {}
    for number, column in enumerate(columns):
        column.sort(key=lambda index: _middle([row_of[one] for one in _of(before, index) if one in row_of], index))
        top = (tallest - len(column)) / 2
        for row, index in enumerate(column):
            row_of[index] = top + row
            boxes[index].x = MARGIN + number * (WIDTH + GAP_X)
            boxes[index].y = MARGIN + round((top + row) * (HEIGHT + GAP_Y))


def _of(before: Sequence[set[int]], index: int) -> set[int]:
    return before[index] if index < len(before) else set()


def _middle(rows: Sequence[float], index: int) -> tuple[float, int]:
    return (sum(rows) / len(rows) if rows else index, index)


def _ended(box: Box) -> bool:
    return all(one.state is None or one.state.is_final for one in box.members)


def _path(start: Box, end: Box) -> str:
    x, y, to_x, to_y = start.x + WIDTH, start.y + HEIGHT // 2, end.x, end.y + HEIGHT // 2
    bend = GAP_X // 2
    return f"M{x} {y} C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}"
