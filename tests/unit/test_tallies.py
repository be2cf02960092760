"""Counters by topic: batches cost what their topics cost, and topics are bounded."""

from __future__ import annotations

from bisect import bisect_left
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.domain.histogram import WAITS_US, Histogram
from headgate.domain.states import OutcomeKind
from headgate.domain.tallies import LENT_MAX, NO_MARK, OTHER, Tallies

NOW_US = 2_000_000_000_000
NAMES = {1: ("", "mail"), 2: ("", "image"), 3: ("", "report")}


@pytest.fixture
def tallies() -> Tallies:
    return Tallies(topics_max=2, label_of=NAMES.get)


def test_a_bound_includes_its_own_value() -> None:
    histogram = Histogram((1, 2, 5))
    for value in (0, 1, 1.5, 2, 5, 6):
        histogram.observe(value)
    assert (histogram.counts, histogram.total) == ([2, 2, 1, 1], 15.5)


@given(st.lists(st.integers(min_value=-5_000, max_value=200_000_000_000), min_size=1, max_size=60))
def test_a_batch_is_counted_as_its_jobs_one_by_one(waits: list[int]) -> None:
    batch = Histogram(WAITS_US)
    batch.observe_since(NOW_US, [NOW_US - wait for wait in waits])
    singly = [0] * (len(WAITS_US) + 1)
    for wait in waits:
        singly[bisect_left(WAITS_US, wait)] += 1
    assert (batch.counts, batch.total) == (singly, sum(waits))


def test_buckets_reach_from_a_millisecond_to_hours() -> None:
    assert WAITS_US[0] == 1_000
    assert WAITS_US[-1] >= 4 * 3_600 * 1_000_000
    assert list(WAITS_US) == sorted(WAITS_US)


def test_submits_claims_and_outcomes_are_counted_by_topic(tallies: Tallies) -> None:
    tallies.submitted([1, 1, 2, 1], left_out=[1])
    tallies.claimed([1, 2, 1], [NOW_US - 3_000, NOW_US - 40_000, NOW_US - 900], NOW_US)
    first, second = (1, 1, 10.0), (1, 2, 10.0)
    tallies.settled([first, first, second], OutcomeKind.COMPLETED, 12.0)
    tallies.settled([first], OutcomeKind.FAILED, 10.5)
    tallies.died(first)
    mail, image = tallies.by_label["", "mail"], tallies.by_label["", "image"]
    assert (mail.submitted, mail.claimed, mail.dead) == (2, 2, 1)
    assert (image.submitted, image.claimed, image.dead) == (1, 1, 0)
    assert mail.settled[OutcomeKind.COMPLETED] == 2
    assert mail.settled[OutcomeKind.FAILED] == 1
    assert (mail.pickup.total, image.pickup.total) == (3_900, 40_000)
    assert mail.run.total == 2 * 2_000_000 + 500_000
    assert sum(mail.run.counts) == 3


def test_an_abandoned_attempt_and_one_handed_over_elsewhere_have_no_duration(tallies: Tallies) -> None:
    tallies.settled([(1, 1, 10.0)], OutcomeKind.ABANDON, 12.0)
    tallies.settled([NO_MARK], OutcomeKind.COMPLETED, 12.0)
    assert tallies.by_label["", "mail"].settled[OutcomeKind.ABANDON] == 1
    assert tallies.by_label[OTHER].settled[OutcomeKind.COMPLETED] == 1
    assert not any(sum(tally.run.counts) for tally in tallies.by_label.values())


def test_topics_beyond_the_bound_share_one_and_none_changes_its_place(tallies: Tallies) -> None:
    tallies.submitted([1])
    tallies.submitted([2])
    tallies.submitted([3] * 1_000)
    tallies.submitted([2] * 5)
    assert set(tallies.by_label) == {OTHER, ("", "mail"), ("", "image")}
    assert tallies.by_label[OTHER].submitted == 1_000
    assert tallies.by_label["", "image"].submitted == 6


def test_a_topic_whose_name_is_not_known_yet_is_counted_as_other_until_it_is() -> None:
    names: dict[int, tuple[str, str]] = {}
    tallies = Tallies(label_of=names.get)
    tallies.submitted([7])
    names[7] = ("", "late")
    tallies.submitted([7])
    assert (tallies.by_label[OTHER].submitted, tallies.by_label["", "late"].submitted) == (1, 1)


def test_topics_of_one_name_in_two_tenants_are_one_unless_tenants_are_shown() -> None:
    merged = Tallies(label_of=lambda _: ("", "mail"))
    apart = Tallies(label_of=lambda no: (f"t{no}", "mail"))
    for tallies in (merged, apart):
        tallies.submitted([1])
        tallies.submitted([2])
    assert merged.by_label["", "mail"].submitted == 2
    assert [apart.by_label[name, "mail"].submitted for name in ("t1", "t2")] == [1, 1]


def test_what_is_lent_to_single_claims_is_bounded_and_given_once(tallies: Tallies) -> None:
    tallies.lend({UUID(int=n): (1, 1, 5.0) for n in range(LENT_MAX + 10)})
    assert tallies.lent(UUID(int=0)) == NO_MARK, "the oldest are forgotten"
    assert tallies.lent(UUID(int=LENT_MAX)) == (1, 1, 5.0)
    assert tallies.lent(UUID(int=LENT_MAX)) == NO_MARK
