"""How a claim's credit is taken from the sessions that share a demand."""

from __future__ import annotations

from headgate.dispatch.demand import Demand
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
