"""The order and the shares in which leases are renewed."""

from __future__ import annotations

from collections import Counter
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.dispatch.session import LONG_LIST, LONG_LIST_SECONDS, WorkerSession
from headgate.dispatch.sessions import HELD_PER_TENANT, WorkerSessions
from headgate.dispatch.shares import Due, fair_shares, in_shares
from headgate.domain.errors import Overloaded
from headgate.domain.identity import Identity, Scope


def make_session(tenant_no: int, name: str) -> WorkerSession:
    identity = Identity(tenant=f"tenant-{tenant_no}", subject="tester", scopes=frozenset({Scope.WORK}))
    return WorkerSession(identity, tenant_no, name, lambda: 0.0, 60_000)


def leases(session: WorkerSession, *expires: float) -> list[Due]:
    return [Due(at, session, UUID(int=number), 1, 60_000) for number, at in enumerate(expires)]


@pytest.mark.parametrize(
    ("wanted", "room", "shares"),
    [
        ([5, 5], 10, [5, 5]),
        ([100, 100, 2], 30, [14, 14, 2]),  # what one does not need goes to the others
        ([100, 1, 100], 10, [5, 1, 4]),  # what cannot be divided goes to the first
        ([9, 9, 9, 9], 2, [1, 1, 0, 0]),
        ([3, 4], 100, [3, 4]),
        ([], 10, []),
        ([0, 7], 5, [0, 5]),
    ],
)
def test_shares_are_equal_up_to_what_each_wants(wanted: list[int], room: int, shares: list[int]) -> None:
    assert fair_shares(wanted, room) == shares


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 200))
def test_nothing_is_left_over_and_no_one_with_less_than_another_wants_more(wanted: list[int], room: int) -> None:
    shares = fair_shares(wanted, room)
    assert sum(shares) == min(room, sum(wanted))
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))
    unmet = [share for share, want in zip(shares, wanted, strict=True) if share < want]
    assert all(max(shares) <= share + 1 for share in unmet)


def test_what_fits_one_statement_is_one_statement() -> None:
    due = leases(make_session(1, "a"), 3, 1, 2)
    assert list(in_shares(due, 3)) == [due]
    assert list(in_shares([], 3)) == []


def test_of_one_session_the_leases_that_expire_soonest_come_first() -> None:
    order = list(range(100))
    Random(7).shuffle(order)
    batches = list(in_shares(leases(make_session(1, "a"), *order), 30))
    assert [one.expires for batch in batches for one in batch] == list(range(100))


def test_a_tenants_thousands_of_leases_leave_another_tenant_its_share_of_every_statement() -> None:
    greedy, small, smaller = make_session(1, "greedy"), make_session(2, "small"), make_session(2, "smaller")
    # The greedy one's expire sooner than all others: its share is not larger for it.
    due = leases(greedy, *range(10_000)) + leases(small, *range(50_000, 50_900)) + leases(smaller, 60_000)
    batches = list(in_shares(due, 1_000))
    assert sum(map(len, batches)) == len(due)
    first = Counter(one.session.worker_id for one in batches[0])
    assert first == {"greedy": 500, "small": 499, "smaller": 1}
    second = Counter(one.session.worker_id for one in batches[1])
    assert second == {"greedy": 599, "small": 401}
    assert [one.expires for one in batches[0] if one.session is greedy] == list(range(500))


def test_sessions_of_one_tenant_have_equal_shares_too() -> None:
    busy, calm = make_session(1, "busy"), make_session(1, "calm")
    due = leases(busy, *range(5_000)) + leases(calm, 9_000, 9_001)
    assert {one.expires for one in next(in_shares(due, 100)) if one.session is calm} == {9_000, 9_001}


def test_with_more_sessions_than_rows_those_that_expire_soonest_are_served() -> None:
    due = [one for number in range(50) for one in leases(make_session(number, f"w{number}"), 100 - number)]
    batches = list(in_shares(due, 10))
    assert [one.expires for one in batches[0]] == list(range(51, 61))
    assert [len(batch) for batch in batches] == [10] * 5


def test_an_extended_lease_has_its_turn_by_when_the_one_it_has_expires() -> None:
    session, job = make_session(1, "one"), UUID(int=1)
    session.hold(job, 3, 60_000, renew_at=100.0)  # it expires at 130
    session.extend(job, 2, 86_400_000, 90.0)
    assert session.held[job][:3] == (3, 60_000, 100.0)  # the wish of an earlier attempt
    session.extend(job, 3, 86_400_000, 90.0)
    epoch, lease_ms, renew_at, _ = session.held[job]
    assert (epoch, lease_ms) == (3, 86_400_000)
    assert renew_at <= 90.0
    assert renew_at + lease_ms / 2000 == 130.0
    session.hold(job, 4, 60_000, renew_at=100.0)
    session.extend(job, 4, 10_000, 90.0)
    assert session.held[job][2] == 90.0  # a shorter one is due at once, too


def test_long_lists_are_read_once_a_second_and_short_ones_always() -> None:
    now = 0.0
    identity = Identity(tenant="tenant", subject="tester", scopes=frozenset({Scope.WORK}))
    session = WorkerSession(identity, 1, "one", lambda: now, 60_000)
    assert session.may_list(LONG_LIST + 1)
    assert not session.may_list(LONG_LIST + 1)
    assert session.may_list(LONG_LIST)
    now = LONG_LIST_SECONDS
    assert session.may_list(LONG_LIST + 1)


def test_jobs_that_are_being_declared_count_as_held() -> None:
    sessions, first = WorkerSessions(), make_session(1, "one")
    sessions.check_capacity(1, HELD_PER_TENANT)
    first.declaring = HELD_PER_TENANT
    sessions.open(first)
    with pytest.raises(Overloaded):
        sessions.check_capacity(1, 1)
    sessions.check_capacity(2, HELD_PER_TENANT)
    first.declaring = 0
    sessions.check_capacity(1, HELD_PER_TENANT)
