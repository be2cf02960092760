"""Where the rules of a topic come from: what wins, which version it is, when two declarations conflict."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headgate.domain.backoff import RetryPolicy
from headgate.domain.errors import InvalidInput
from headgate.domain.topic_limits import Rate
from headgate.domain.topic_rules import (
    DECLARABLE,
    DECLARATIONS_KEPT,
    NAMES,
    WORKERS_KEPT,
    OperatorValue,
    Origin,
    RuleSources,
    checked_declaration,
    default_of,
    pair_of,
    plain_sources,
    sources_from_plain,
)

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def declared(*each: tuple[str, str, dict[str, Any]]) -> RuleSources:
    """Declarations in their order: source, worker, rules."""
    sources = RuleSources()
    for source, worker, rules in each:
        sources, _ = sources.declare(source, rules, worker=worker, by="token", at=NOON)
    return sources


def with_setting(sources: RuleSources, **values: Any) -> RuleSources:
    own = {name: OperatorValue(value=value, by="ana", at=NOON, reason="3 a.m.") for name, value in values.items()}
    return RuleSources(declarations=sources.declarations, settings={**sources.settings, **own})


def test_what_an_operator_has_set_wins_over_what_is_declared() -> None:
    sources = with_setting(declared(("shop", "w1", {"max_attempts": 5, "priority": 7})), max_attempts=3)
    assert sources.values() == {"max_attempts": 3, "priority": 7}
    assert sources.overridden() == ["max_attempts"]
    origins = sources.origins()
    assert (origins["max_attempts"].origin, origins["max_attempts"].by) == (Origin.OPERATOR, "ana")
    assert (origins["priority"].origin, origins["priority"].by, origins["priority"].version) == (
        *(Origin.DECLARED, "shop", 1),
    )
    assert "retry" not in origins, "it is the default"


def test_a_default_set_by_an_operator_hides_what_is_declared() -> None:
    assert with_setting(declared(("shop", "w1", {"max_running": 5})), max_running=None).values() == {
        "max_running": None
    }


def test_the_newest_declaration_counts_and_has_the_next_version() -> None:
    sources = declared(("shop", "w1", {"max_attempts": 5}), ("shop", "w2", {"max_attempts": 6}))
    assert (sources.values(), sources.declarations[0].version) == ({"max_attempts": 6}, 2)
    sources, changed = sources.declare("shop", {"max_attempts": 5}, worker="w1", by="token", at=NOON)
    assert (changed, sources.values(), sources.declarations[0].version) == (True, {"max_attempts": 5}, 3)
    sources, changed = sources.declare("shop", {}, worker="w1", by="token", at=NOON)
    assert (changed, sources.values(), sources.declarations[0].version) == (True, {}, 4)


def test_the_same_declaration_again_changes_nothing_but_the_worker() -> None:
    sources, changed = declared(("shop", "w1", {"max_attempts": 5})).declare(
        "shop", {"max_attempts": 5}, worker="w2", by="other", at=NOON + timedelta(hours=1)
    )
    assert not changed
    (one,) = sources.declarations
    assert (one.version, one.at, list(one.workers)) == (1, NOON, ["w2", "w1"])


def test_two_declarations_conflict_while_workers_of_both_are_connected() -> None:
    sources = declared(("shop", "w1", {"max_attempts": 5}), ("bill", "w2", {"max_attempts": 6}))
    found = sources.conflict({"w1", "w2"})
    assert found is not None
    assert (found.source, found.rules) == ("shop", {"max_attempts": 5})
    assert sources.conflict({"w2"}) is None, "the worker that declared something else has gone"
    back, _ = sources.declare("shop", {"max_attempts": 5}, worker="w1", by="t", at=NOON)
    other = back.conflict({"w2"})
    assert other is not None
    assert pair_of(back.declarations[0], other) == pair_of(sources.declarations[0], found), "it is the same conflict"


def test_a_worker_that_declares_something_else_is_in_no_conflict_with_itself() -> None:
    sources = declared(("shop", "w1", {"max_attempts": 5}), ("shop", "w1", {"max_attempts": 6}))
    assert sources.conflict({"w1"}) is None
    same = declared(("shop", "w1", {"max_attempts": 5}), ("bill", "w2", {"max_attempts": 5}))
    assert same.conflict({"w1", "w2"}) is None, "both say the same"


def test_what_is_kept_is_bounded() -> None:
    sources = RuleSources()
    for n in range(50):
        sources, _ = sources.declare("shop", {"max_attempts": n + 1}, worker=f"w{n}", by="t", at=NOON)
        sources, _ = sources.declare("shop", {"max_attempts": n + 1}, worker=f"v{n}", by="t", at=NOON)
    assert len(sources.declarations) == DECLARATIONS_KEPT
    for n in range(50):
        sources, _ = sources.declare("shop", {"max_attempts": 50}, worker=f"u{n}", by="t", at=NOON)
    assert len(sources.declarations[0].workers) == WORKERS_KEPT
    assert sources.declarations[0].workers[0] == "u49"


ALL: dict[str, Any] = {
    "max_attempts": 7,
    "retry": RetryPolicy.fixed(timedelta(seconds=2)),
    "priority": -3,
    "time_limit": timedelta(seconds=30),
    "ageing_step": timedelta(milliseconds=1500),
    "max_running": 0,
    "rate": Rate(count=100, period=timedelta(seconds=1), burst=20),
    "max_running_per_key": 2,
    "key_rate": Rate(count=1, period=timedelta(minutes=1)),
    "ordered_by_key": True,
    "fair_by_key": False,
    "max_backlog": 10**12,
}


def test_every_setting_survives_being_stored() -> None:
    assert set(ALL) == set(DECLARABLE)
    explicit = RetryPolicy.explicit(timedelta(seconds=1), timedelta(minutes=5))
    sources = with_setting(
        declared(("shop", "w1", ALL), ("shop", "w2", {"retry": explicit})),
        **ALL,
        keep_completed=timedelta(days=3),
        keep_dead=None,
    )
    assert sources_from_plain(*plain_sources(sources), sources.reported) == sources
    assert sources_from_plain(None, None, None) == RuleSources()


def test_a_declaration_is_checked_and_every_name_has_a_default() -> None:
    assert checked_declaration(ALL) == ALL
    for name, wrong in (
        ("max_attempts", 0),
        ("retry", "fast"),
        ("priority", 2**31),
        ("time_limit", timedelta(seconds=-1)),
        ("ageing_step", timedelta(hours=2)),
        ("max_running", -1),
        ("rate", 5),
        ("ordered_by_key", 1),
    ):
        with pytest.raises(InvalidInput, match=name):
            checked_declaration({name: wrong})
    with pytest.raises(InvalidInput, match="keep_dead: cannot be declared"):
        checked_declaration({"keep_dead": timedelta(days=3)})
    assert checked_declaration({name: default_of(name) for name in NAMES if name in DECLARABLE})
