"""Whatever arrives, is locked, limited or paused: claims from the watermark take what claims from the head would."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.dispatch.watermark import MAX_GAPS, Watermark
from headgate.domain.arrivals import ClaimNews, RankRange, Seen
from headgate.domain.keyrange import KeyRanges

TOPICS = (1, 2)
SEEN = Seen("1:1:", 1)
Job = tuple[int, int, int]  # class, rank, topic: as they are sorted

ranks = st.integers(0, 12)
jobs = st.tuples(st.sampled_from((-3, -2, -1, -1, -1)), ranks, st.sampled_from((1, 1, 2)))
ranges = st.builds(lambda low, width: (low, low + width), ranks, st.integers(0, 3))
steps = st.one_of(
    st.tuples(st.just("arrive"), st.lists(jobs, min_size=1, max_size=4)),
    st.tuples(
        st.just("claim"),
        st.fixed_dictionaries(
            {
                "limit": st.integers(1, 3),
                "sweep_us": st.sampled_from([0, 0, 1, 3]),
                "locked": st.just([]) | st.lists(st.integers(0, 8), max_size=3),
                "room": st.sampled_from((None, None, None, 0, 1, 2)),  # of topic 2
                "paused": st.sampled_from((False, False, False, True)),  # topic 2
                "tried": st.sampled_from((None, None, None, 1, 2, 4)),  # no more candidates than this are looked at
                "head": st.sampled_from([False] * 4 + [True]),  # without reading what has arrived
                "restart": st.sampled_from([False] * 5 + [True]),
                "failed": st.sampled_from([False] * 5 + [True]),
            }
        ),
    ),
)


def inside(job: Job, where: KeyRanges) -> int:
    """In how many of the ranges a job lies."""
    rank_class, rank, topic = job
    return sum(
        topic == topic_no and low <= (rank_class, rank) < high
        for topic_no, low, high in zip(
            where.topic_nos,
            zip(where.class_from, where.rank_from, strict=True),
            zip(where.class_to, where.rank_to, strict=True),
            strict=True,
        )
    )


class Store:
    """The claim function, as far as it concerns the watermark. Several jobs may have one rank."""

    def __init__(self) -> None:
        self.pending: list[Job] = []
        self.arrived: list[RankRange] = []  # all of them; what a claim has seen is how many there were
        self.marks = Watermark(max_classes=2)

    def arrive(self, found: list[Job]) -> None:
        self.pending += found
        self.arrived += [RankRange(topic, rank_class, rank, rank) for rank_class, rank, topic in found]

    def claim(
        self,
        *,
        limit: int,
        sweep_us: int,
        locked: list[int],
        room: int | None,
        paused: bool,
        tried: int | None,
        head: bool,
        restart: bool,
        failed: bool,
    ) -> None:
        self.pending.sort()
        from_head = head or self.marks.seen is None
        unseen = [] if from_head or self.marks.seen is None else self.arrived[int(self.marks.seen.snapshot) :]
        asked = KeyRanges.whole(TOPICS) if from_head else self.marks.ranges(TOPICS, sweep_us=sweep_us)
        assert all(inside(job, asked) <= 1 for job in self.pending), "no place is looked at twice"
        for one, two in pairwise(zip(asked.topic_nos, asked.class_from, asked.rank_from, strict=True)):
            assert one < two, "ascending"
        if failed:
            return
        held = {place for place in locked if place < len(self.pending)}
        allowed: list[int] = []  # what a claim from the head looks at, best first
        left = room
        for place, job in enumerate(self.pending):
            if job[2] == 2:
                if paused or left == 0:
                    continue
                left = left if left is None or place in held else left - 1
            allowed.append(place)
        looked, taken = [], []
        for place in allowed if tried is None else allowed[:tried]:
            looked.append(place)
            if place not in held:
                taken.append(place)
            if len(taken) == limit:
                break
        for place in looked:
            job = self.pending[place]
            seen = any(job[2] == topic and job[:2] == (c, f) for topic, c, f, _ in unseen)
            assert restart or seen or inside(job, asked), f"{job} is passed over"
        full = len(taken) == limit
        cut = tried is not None and not full and len(allowed) > tried
        self.marks.learn(
            TOPICS,
            [self.pending[place][2] for place in taken],
            [self.pending[place][0] for place in taken],
            [self.pending[place][1] for place in taken],
            full=full,
            from_head=from_head,
            news=ClaimNews(
                seen=Seen(str(len(self.arrived)), 1),
                arrived=[] if restart else [one for one in unseen if not (paused and one.topic_no == 2)],
                locked=[
                    RankRange(job[2], job[0], job[1], job[1])
                    for place in looked
                    if place in held
                    for job in [self.pending[place]]
                ],
                paused=frozenset({2} if paused else ()),
                limited=frozenset({2} if room is not None else ()),
                ended=self.pending[looked[-1]][:2] if cut and looked else None,
                restart=restart,
            ),
        )
        self.pending = [job for place, job in enumerate(self.pending) if place not in taken]


@settings(max_examples=120)
@given(st.lists(steps, min_size=10, max_size=60))
def test_a_claim_from_the_watermark_looks_at_all_that_one_from_the_head_would(found: list[tuple[str, object]]) -> None:
    store = Store()
    for name, arguments in found:
        if name == "arrive":
            store.arrive(arguments)  # type: ignore[arg-type]
        else:
            store.claim(**arguments)  # type: ignore[arg-type]


@given(st.lists(ranges, min_size=1, max_size=3 * MAX_GAPS), st.integers(1, 50))
def test_no_gap_is_lost_when_there_are_too_many(found: list[tuple[int, int]], apart: int) -> None:
    marks = Watermark()
    marks.learn([1], [1], [-1], [10**9], full=True, from_head=True, news=ClaimNews(seen=SEEN))
    gaps = [RankRange(1, -1, n * apart + low, n * apart + high) for n, (low, high) in enumerate(found)]
    marks.missed(gaps)
    where = marks.ranges([1])
    assert len(where.topic_nos) <= MAX_GAPS + 2
    for gap in gaps:
        assert inside((-1, gap.rank_from, 1), where) == inside((-1, gap.rank_to, 1), where) == 1


def test_a_look_from_the_head_that_a_limit_cut_short_leaves_arrivals_to_the_next_claim() -> None:
    first, later = Seen("1:1:", 1), Seen("2:2:", 1)
    for news, seen in (
        (ClaimNews(seen=later), later),
        (ClaimNews(seen=later, limited=frozenset({1})), first),
        (ClaimNews(seen=later, ended=(-1, 5)), first),
        (ClaimNews(seen=later, limited=frozenset({1}), restart=True), later),
    ):
        marks = Watermark()
        marks.learn([1], [1], [-1], [100], full=True, from_head=True, news=ClaimNews(seen=first))
        marks.learn([1], [], [], [], full=False, from_head=True, news=news)
        assert marks.seen == seen


def test_a_gap_ends_where_it_was_said_to_end() -> None:
    """One place more, gap by gap, and a claim walks over all that is dead in between."""
    marks = Watermark()
    marks.learn([1], [1], [-1], [100], full=True, from_head=True, news=ClaimNews(seen=SEEN))
    marks.missed([RankRange(1, -1, 10, 19), RankRange(1, -1, 30, 30)])
    where = marks.ranges([1])
    assert [rank for rank in range(120) if inside((-1, rank, 1), where)] == [*range(10, 20), 30, *range(100, 120)]
    marks.learn([1], [1], [-1], [12], full=True, from_head=False, news=ClaimNews(seen=SEEN))
    where = marks.ranges([1])
    assert [rank for rank in range(120) if inside((-1, rank, 1), where)] == [*range(12, 20), 30, *range(100, 120)]
    marks.learn([1], [], [], [], full=False, from_head=False, news=ClaimNews(seen=SEEN))
    where = marks.ranges([1])
    assert [rank for rank in range(120) if inside((-1, rank, 1), where)] == [*range(100, 120)]


def test_a_gap_at_the_rank_of_the_last_job_of_a_full_claim_stays() -> None:
    """Another job may have the same rank, and the claim was full before it."""
    marks = Watermark()
    marks.claimed([1], [-1], [10])
    marks.missed([RankRange(1, -1, 4, 4), RankRange(1, -1, 5, 5), RankRange(1, -1, 7, 7)])
    marks.learn([1], [1], [-1], [5], full=True, from_head=False, news=ClaimNews(seen=SEEN))
    assert [inside((-1, rank, 1), marks.ranges([1])) for rank in (4, 5, 7)] == [0, 1, 1]
