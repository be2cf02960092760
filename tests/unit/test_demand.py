"""How a claim's credit is taken from the sessions that share a demand."""

from __future__ import annotations

from uuid import UUID

import pytest

from headgate.dispatch.demand import CLAIM_BYTES, MOST_HINTS, Demand
from headgate.dispatch.session import WorkerSession
from headgate.domain.identity import Identity, Scope


def session(name: str) -> WorkerSession:
    return WorkerSession(
        Identity(tenant="acme", subject="tester", scopes=frozenset({Scope.WORK})), 1, name, lambda: 0.0, 60_000
    )


def demand_of(*granted: int) -> tuple[Demand, list[WorkerSession]]:
    demand = Demand(1, (1,), 60_000)
    sessions = [session(f"w{number}") for number in range(len(granted))]
    for one, count in zip(sessions, granted, strict=True):
        demand.grant(one, count)
    return demand, sessions


def test_scarce_work_is_dealt_in_equal_shares() -> None:
    demand, (a, b, c) = demand_of(100, 100, 2)
    assert demand.reserve(30) == [(a, 18), (b, 10), (c, 2)], "what c leaves goes round again"


def test_while_there_is_enough_each_session_gets_all_it_asked_for_in_turn() -> None:
    demand, (a, b, c) = demand_of(20, 20, 20)
    demand.saturated = True
    assert demand.reserve(30) == [(a, 20), (b, 10)]
    demand.give_back([(a, 20), (b, 10)], 30)
    assert demand.reserve(30) == [(c, 20), (b, 10)], "who got nothing comes first, who got a part after it"
    assert demand.credit == 0


def test_a_session_gets_a_whole_frame_by_the_next_claim_rather_than_the_rest_of_this_one() -> None:
    demand, (a, b, c) = demand_of(450, 450, 450)
    demand.saturated = True
    assert demand.reserve(500) == [(a, 450)]
    assert demand.reserve(500) == [(b, 450)]
    assert demand.reserve(700) == [(c, 450)]
    assert demand.credit == 0
    demand, (a, b) = demand_of(300, 300)
    demand.saturated = True
    assert demand.reserve(500) == [(a, 300), (b, 200)], "most of a frame is given: claims must not become small"


def test_a_session_that_is_full_is_passed_over_keeps_its_credit_and_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    demand, (a, b) = demand_of(5, 3)
    full = {a}
    monkeypatch.setattr(WorkerSession, "is_full", property(lambda one: one in full))
    assert demand.reserve(10) == [(b, 3)]
    assert (a.starved, b.starved, demand.credit) == (True, False, 5)
    full.clear()
    assert demand.reserve(10) == [(a, 5)]


def test_new_credit_wakes_a_demand_that_was_put_off_because_all_were_full() -> None:
    demand, (a,) = demand_of(1)
    demand.wake_pending, demand.delayed = False, True
    demand.grant(a, 1)
    assert (demand.wake_pending, demand.delayed, demand.wants_claim) == (True, False, True)


def test_what_a_claim_did_not_deal_goes_back_to_those_that_got_nothing_first() -> None:
    demand, (a, b, c) = demand_of(4, 4, 4)
    for one in (a, b, c):
        one.awaits_look = True
    runs = demand.reserve(12)
    demand.give_back(runs, 6)
    assert [(one.worker_id, one.credit[demand]) for one in demand.sessions] == [("w2", 4), ("w1", 2)]
    assert (demand.credit, a.credit[demand]) == (6, 0)
    assert [one.awaits_look and one._looked for one in (a, b, c)] == [False, False, True], "the others got jobs"


def test_credit_that_was_revoked_during_a_claim_is_not_given_back() -> None:
    demand, (a, b) = demand_of(2, 2)
    runs = demand.reserve(4)
    demand.claiming = True
    demand.forget(a, keep=True)
    demand.grant(a, 1)
    demand.give_back(runs, 0)
    assert demand.revoked == {a: True}
    assert (a.credit[demand], b.credit[demand], demand.credit) == (1, 2, 3)
    demand.claiming, demand.revoked = False, {}
    assert demand.forget(b) == 2
    assert demand.revoked == {}, "no claim is in flight"
    assert list(demand.sessions) == [a]


def test_too_many_hints_are_a_look_from_the_head() -> None:
    demand, _ = demand_of(1)
    demand.from_head = False
    demand.look_for(UUID(int=n) for n in range(MOST_HINTS))
    assert (len(demand.hints), demand.from_head) == (MOST_HINTS, False)
    demand.look_for([UUID(int=MOST_HINTS)])
    assert (len(demand.hints), demand.from_head) == (0, True)


def test_a_claim_follows_the_weight_of_jobs_up_at_once_and_down_slowly() -> None:
    demand, _ = demand_of(1)
    demand.expect(CLAIM_BYTES / 2)
    assert demand.most(500) == 2
    demand.expect(0)
    assert demand.most(500) == 4
    demand.expect(2 * CLAIM_BYTES)
    assert demand.most(500) == 1
