"""What jobs do on one instance, counted by topic in plain integers (ADR 43).

Counting happens by flush, claim and frame, after the commit, where the batch is in hand anyway: a batch of one topic
costs the same for one job and for five hundred. Nothing here knows a format or a library; `ops/metrics` reads it.

Topics (of all tenants together) are bounded. The first `topics_max` that have traffic here get counters of their own,
and keep them until the process ends; all others share one, OTHER. A counter that moved between the two would fall, or
jump.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from headgate.domain.histogram import WAITS_US, Histogram
from headgate.domain.states import OutcomeKind

TOPICS_MAX: Final = 100
Label: TypeAlias = tuple[str, str]
"""Tenant and topic."""
OTHER: Final[Label] = ("", "other")
Mark: TypeAlias = tuple[int, int, float]
"""How a job was handed over: the number of its delivery on its session, its topic (0: not known here), and when, by the
monotonic clock (0: not by this process). One object for all jobs of a delivery that are of one topic; of numbers only,
so that the garbage collector does not look at it."""
NO_MARK: Final[Mark] = (0, 0, 0.0)
LENT_MAX: Final = 50_000
"""Jobs claimed by single calls whose topic and start are remembered; the oldest are forgotten."""


class TopicTally:
    """The counters of one topic."""

    __slots__ = ("claimed", "dead", "lapsed", "pickup", "run", "settled", "submitted")

    def __init__(self) -> None:
        self.submitted = self.claimed = self.dead = self.lapsed = 0
        self.settled = [0] * len(OutcomeKind)  # by kind
        self.pickup, self.run = Histogram(WAITS_US), Histogram(WAITS_US)

    def add(self, other: TopicTally) -> None:
        """Count what another one has counted."""
        self.submitted += other.submitted
        self.claimed += other.claimed
        self.dead += other.dead
        self.lapsed += other.lapsed
        self.settled = [mine + theirs for mine, theirs in zip(self.settled, other.settled, strict=True)]
        self.pickup.add(other.pickup)
        self.run.add(other.run)


class Tallies:
    """The counters of one instance."""

    def __init__(
        self, *, topics_max: int = TOPICS_MAX, label_of: Callable[[int], Label | None] = lambda _: None
    ) -> None:
        """`label_of`: the names of a topic by its number; None if they are not known."""
        self._topics_max, self._label_of = topics_max, label_of
        self._by_no: dict[int, TopicTally] = {}
        self.by_label: dict[Label, TopicTally] = {OTHER: TopicTally()}
        self.receipts: Counter[str] = Counter()  # outcomes that were not applied, by receipt, or "error"
        self.refused_submits: Counter[str] = Counter()  # jobs, by the code of the error
        self._lent: OrderedDict[UUID, Mark] = OrderedDict()  # bounded by LENT_MAX

    def submitted(self, topic_nos: Sequence[int], left_out: Iterable[int] = ()) -> None:
        """Jobs were made, one for each of `topic_nos`, but for the indexes `left_out`."""
        for topic_no, count in counted(topic_nos).items():
            self._of(topic_no).submitted += count
        for index in left_out:
            self._of(topic_nos[index]).submitted -= 1

    def claimed(self, topic_nos: Sequence[int], due_us: Sequence[int], now_us: int) -> None:
        """Jobs were handed over: when each fell due, and the present time, both by the database's clock."""
        counts = counted(topic_nos)
        for topic_no, count in counts.items():
            tally = self._of(topic_no)
            tally.claimed += count
            if len(counts) > 1:
                tally.pickup.observe_since(
                    now_us, [due for due, no in zip(due_us, topic_nos, strict=True) if no == topic_no]
                )
            else:
                tally.pickup.observe_since(now_us, due_us)

    def settled(self, marks: Sequence[Mark], kind: OutcomeKind, now: float) -> None:
        """Outcomes of one kind were applied to jobs that were handed over as `marks` say."""
        first = marks[0]
        # The frame of a worker has mostly jobs of one delivery. Comparing identities is the cheapest test there is.
        same = marks.count(first) == len(marks)
        for mark, count in ((first, len(marks)),) if same else Counter(marks).items():
            _, topic_no, at = mark
            tally = self._of(topic_no)
            tally.settled[kind] += count
            if at and kind is not OutcomeKind.ABANDON:  # which has not run to an end
                tally.run.observe(int((now - at) * 1_000_000), count)

    def died(self, mark: Mark) -> None:
        """An outcome has made a job dead."""
        self._of(mark[1]).dead += 1

    def lapsed(self, topic_nos: Sequence[int]) -> None:
        """Leases have ended without renewal, one for each of `topic_nos`."""
        for topic_no, count in counted(topic_nos).items():
            self._of(topic_no).lapsed += count

    def lend(self, marks: Mapping[UUID, Mark]) -> None:
        """Jobs were claimed by a single call: no session remembers how they were handed over."""
        self._lent.update(marks)
        while len(self._lent) > LENT_MAX:
            self._lent.popitem(last=False)

    def lent(self, job_id: UUID) -> Mark:
        """How such a job was handed over; it is forgotten."""
        return self._lent.pop(job_id, NO_MARK)

    def by_topic(self) -> Iterator[tuple[int, TopicTally]]:
        """The topics with counters of their own, by number."""
        other = self.by_label[OTHER]
        return ((no, tally) for no, tally in self._by_no.items() if tally is not other)

    def _of(self, topic_no: int) -> TopicTally:
        found = self._by_no.get(topic_no)
        if found is None:
            label = self._label_of(topic_no) if topic_no else None
            if label is None:  # not remembered: the names may be known the next time
                return self.by_label[OTHER]
            found = self.by_label.get(label)
            if found is None and len(self.by_label) <= self._topics_max:  # OTHER is among them
                found = self.by_label[label] = TopicTally()
            self._by_no[topic_no] = found = found or self.by_label[OTHER]
        return found


def counted(numbers: Sequence[int]) -> Mapping[int, int]:
    """How often each is there; almost free if all are the same."""
    if not numbers:
        return {}
    first = numbers[0]
    return {first: len(numbers)} if numbers.count(first) == len(numbers) else Counter(numbers)
