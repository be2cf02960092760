"""Outcomes on their way to the database: one frame's outcomes as a write, and how writes are divided and answered."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from headgate.dispatch.delivery import Answer
from headgate.dispatch.session import WorkerSession
from headgate.domain.dispatching import Settled
from headgate.domain.errors import HeadgateError
from headgate.domain.outcomes import Outcome, kind_of
from headgate.domain.states import OutcomeKind, Receipt, State
from headgate.domain.tallies import NO_MARK, Mark, Tallies
from headgate.domain.topic_sets import TopicSet

Done: TypeAlias = Callable[[Mapping[int, Answer]], None]
"""Takes the answers of a write, by row: those that are not simply applied as sent."""


@dataclass(slots=True)
class OutcomeWrite:
    """One frame's outcomes: completions as parallel lists, then the others. Rows count in that order."""

    tenant_no: int
    ids: Sequence[UUID]
    epochs: Sequence[int]
    results: Sequence[bytes]
    others: Sequence[tuple[UUID, int, Outcome]]
    done: Done
    failed: Callable[[HeadgateError], None]
    session: WorkerSession | None = None
    size: int = 0
    topics: TopicSet | None = None  # jobs of other topics count as unknown, where unmatched
    marks: Mapping[UUID, Mark] | None = None  # how jobs were handed over, where no session knows it
    tries: int = 0  # how often these rows were found locked
    until: float = 0.0  # by the loop's clock: when they are not tried again any more

    @property
    def rows(self) -> int:
        return len(self.ids) + len(self.others)

    def fail(self, error: HeadgateError) -> None:
        self.failed(error)

    def key(self, row: int) -> tuple[int, UUID, int]:
        """Tenant, job and epoch of one row."""
        if row < len(self.ids):
            return self.tenant_no, self.ids[row], self.epochs[row]
        return self.tenant_no, *self.others[row - len(self.ids)][:2]

    def copy_rows(self, other: OutcomeWrite, rows: Sequence[int]) -> None:
        """Take over rows of another write, ascending: completions before the rest, as they stand there."""
        first_other = len(other.ids)
        completed = [row for row in rows if row < first_other]
        self.ids = [*self.ids, *(other.ids[row] for row in completed)]
        self.epochs = [*self.epochs, *(other.epochs[row] for row in completed)]
        self.results = [*self.results, *(other.results[row] for row in completed)]
        rest = [other.others[row - first_other] for row in rows if row >= first_other]
        self.others = [*self.others, *rest]
        self.size += sum(100 + len(other.results[row]) for row in completed)
        # An error's text is counted as the others' bytes were: by their share.
        self.size += 200 * len(rest) + (other.size * len(rest) // other.rows if rest else 0)


LOCKED: Final = Settled(receipt=Receipt.LOCKED)
UNKNOWN: Final = Settled(receipt=Receipt.UNKNOWN)

Part: TypeAlias = tuple[OutcomeWrite, range, dict[int, Answer]]
"""Rows of a write, and where their answers go."""
Put: TypeAlias = Callable[[OutcomeWrite], None]
"""Queues a write. Raises Overloaded."""


def halves(parts: Sequence[Part]) -> tuple[list[Part], list[Part]]:
    """Two halves by rows, in order."""
    left = sum(len(rows) for _, rows, _ in parts) // 2
    front: list[Part] = []
    back: list[Part] = []
    for write, rows, answers in parts:
        cut = min(left, len(rows))
        left -= cut
        if cut:
            front.append((write, rows[:cut], answers))
        if cut < len(rows):
            back.append((write, rows[cut:], answers))
    return front, back


def is_locked(answer: Answer | None) -> bool:
    """Whether nothing was decided, because another transaction has the row."""
    return answer is not None and not isinstance(answer, HeadgateError) and answer.receipt is Receipt.LOCKED


def undecided(
    write: OutcomeWrite, answers: Mapping[int, Answer], session: WorkerSession
) -> dict[UUID, tuple[int, int, float, Mark]]:
    """What a session still holds because its outcome could not be written: as it is held now."""
    ids = [*write.ids, *(job_id for job_id, _, _ in write.others)]
    rows = [row for row, answer in answers.items() if isinstance(answer, HeadgateError) or is_locked(answer)]
    return {ids[row]: session.held[ids[row]] for row in rows if ids[row] in session.held}


def release(write: OutcomeWrite, answers: Mapping[int, Answer]) -> list[Mark]:
    """Let its session renew these no more, but for what is undecided; returns how each row was handed over."""
    session, others = write.session, write.others
    if session is None:
        known = write.marks or {}
        return [known.get(write.key(row)[1], NO_MARK) for row in range(write.rows)] if known else [NO_MARK] * write.rows
    still = undecided(write, answers, session) if answers else {}
    marks = session.settled(write.ids, write.epochs)
    if others:
        marks += session.settled([job_id for job_id, _, _ in others], [epoch for _, epoch, _ in others])
    session.held.update(still)
    return marks


def tally(
    tallies: Tallies, write: OutcomeWrite, marks: Sequence[Mark], answers: Mapping[int, Answer], now: float
) -> None:
    """Count what became of a write. Without answers all are completions that were applied: the hot path."""
    first_other = len(write.ids)
    if not answers and not write.others:
        if marks:
            tallies.settled(marks, OutcomeKind.COMPLETED, now)
        return
    applied: dict[OutcomeKind, list[Mark]] = {}
    for row, mark in enumerate(marks):
        answer = answers.get(row)
        if isinstance(answer, HeadgateError):
            tallies.receipts["error"] += 1
        elif answer is not None and answer.receipt is not Receipt.APPLIED:
            tallies.receipts[answer.receipt.label] += 1
        else:
            kind = OutcomeKind.COMPLETED if row < first_other else kind_of(write.others[row - first_other][2])
            applied.setdefault(kind, []).append(mark)
            if answer is not None and answer.state is State.DEAD:
                tallies.died(mark)
    for kind, theirs in applied.items():
        tallies.settled(theirs, kind, now)


def permitted(parts: Sequence[Part], known: Mapping[int, Mapping[UUID, str]]) -> list[Part]:
    """What is left without the jobs of topics that their sender's token does not permit: these do not exist.

    `known`: by tenant, the topics of the jobs that restricted tokens report.
    """
    left: list[Part] = []
    for write, rows, answers in parts:
        if write.topics is None:
            left.append((write, rows, answers))
            continue
        topics, start = known[write.tenant_no], rows.start
        for row in rows:
            if topics.get(write.key(row)[1]) not in write.topics:
                answers[row] = UNKNOWN
                left.append((write, range(start, row), answers))
                start = row + 1
        left.append((write, range(start, rows.stop), answers))
    return [part for part in left if part[1]]


def put_in_parts(write: OutcomeWrite, held: Container[UUID], *, given: Put, unmatched: Put) -> None:
    """Queue a session's outcomes of which some are not of jobs it holds: these by the writer for such outcomes.

    Its sender has one answer, when both parts are written. Raises Overloaded if nothing of it was queued.
    """
    mine = [row for row in range(write.rows) if write.key(row)[1] in held]
    others = sorted(set(range(write.rows)).difference(mine))
    both = _BothParts(write, waits_for=2 if mine else 1)
    if mine:
        given(both.part(mine))
    try:
        unmatched(both.part(others, counted=True))
    except HeadgateError as error:
        if not mine:
            raise
        both.failed(error)


class _BothParts:
    """Answers a write that is written in one or two parts, when the last of them is written."""

    def __init__(self, write: OutcomeWrite, *, waits_for: int) -> None:
        self._whole, self._waits_for = write, waits_for
        self._answers: dict[int, Answer] = {}
        self._error: HeadgateError | None = None

    def part(self, rows: Sequence[int], *, counted: bool = False) -> OutcomeWrite:
        """These rows as a write. `counted`: jobs that do not exist are counted against the session."""
        whole = self._whole
        part = OutcomeWrite(
            whole.tenant_no,
            [],
            [],
            [],
            [],
            done=lambda answers: self._done(rows, answers, counted=counted),
            failed=self.failed,
            session=whole.session,
            topics=whole.topics,
        )
        part.copy_rows(whole, rows)
        return part

    def failed(self, error: HeadgateError) -> None:
        """A part was not written: then the sender sends all of it again, which is harmless for what was."""
        self._error = error
        self._over()

    def _done(self, rows: Sequence[int], answers: Mapping[int, Answer], *, counted: bool) -> None:
        self._answers.update({rows[row]: answer for row, answer in answers.items()})
        self._over()
        if counted and self._whole.session is not None:
            unknown = sum(
                not isinstance(answer, HeadgateError) and answer.receipt is Receipt.UNKNOWN
                for answer in answers.values()
            )
            self._whole.session.reported_jobs(given=len(rows) - unknown, unknown=unknown)

    def _over(self) -> None:
        self._waits_for -= 1
        if self._waits_for:
            return
        if self._error is not None:
            self._whole.fail(self._error)
        else:
            self._whole.done(self._answers)
