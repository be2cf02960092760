"""The words of the benchmark page: who is ahead, and what a sweep found."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers import __main__ as command
from bench.peers import install
from bench.peers.catalog import BY_NAME, PEERS
from bench.peers.lanes import Sizes
from bench.peers.page_notes import is_plain
from bench.peers.peer import Peer, Setting
from bench.peers.results import Entry, Figure, Results, Round, figure, rate
from bench.peers.standing import Standing, judged, judged_among, spelled, standing
from bench.peers.sweep import BULK, SINGLE, WORK, Sweep, Trial, best, choose, chosen, lanes_of


def runs(*values: float) -> Figure:
    return figure(values, 2)


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        (runs(10, 11, 12), runs(7, 8, 9), Standing.AHEAD),
        (runs(7, 8, 9), runs(10, 11, 12), Standing.BEHIND),
        (runs(10, 11, 12), runs(8, 9, 10), Standing.LEVEL),
        (runs(8, 9, 10), runs(10, 11, 12), Standing.LEVEL),
        (runs(5, 20, 21), runs(6, 7, 8), Standing.LEVEL),
        (runs(10, 11, 12), runs(3), Standing.UNKNOWN),
        (runs(10), runs(1, 2, 3), Standing.UNKNOWN),
        (runs(10, 11, 12), runs(9, 10), Standing.LEVEL),
    ],
)
def test_a_spread_that_overlaps_is_level(ours: Figure, theirs: Figure, found: Standing) -> None:
    assert standing(ours, theirs) is found
    mirrored = {Standing.AHEAD: Standing.BEHIND, Standing.BEHIND: Standing.AHEAD}.get(found, found)
    assert standing(ours, theirs, less_is_better=True) is mirrored


@pytest.mark.parametrize(("ours", "theirs"), [(runs(10, 11, 12), runs(3, 4)), (runs(10, 11), runs(3, 4, 5))])
def test_ahead_needs_three_runs_of_both_and_behind_does_not(ours: Figure, theirs: Figure) -> None:
    assert standing(ours, theirs) is Standing.UNKNOWN
    assert standing(theirs, ours) is Standing.BEHIND


def test_a_worse_figure_is_behind_in_bold_and_one_that_overlaps_has_no_factor() -> None:
    assert judged(runs(4, 5, 6), runs(9, 10, 11)) == "**behind, 0.50×**"
    assert judged(runs(9, 10, 11), runs(4, 5, 6)) == "ahead, 2.00×"
    assert judged(runs(4, 5, 6), runs(9, 10, 11), less_is_better=True) == "ahead, 2.00×"
    assert judged(runs(9, 10, 11), runs(4, 5, 6), less_is_better=True) == "**behind, 0.50×**"
    assert judged(runs(9, 10, 11), runs(8, 9.5, 10)) == "level"
    assert judged(runs(9, 10, 11), runs(1)) == "not judged (fewer than 3 runs)"


def test_a_figure_is_shown_with_its_spread_or_as_one_run() -> None:
    rounds = [Round(jobs=1000, seconds=seconds, capped=False) for seconds in (0.5, 0.25, 0.2)]
    assert spelled(rate(rounds), "/s") == "4,000/s (2,000 … 5,000)"
    assert spelled(rate(rounds[:1]), "/s") == "2,000/s (one run)"


def test_no_ratio_to_what_does_less_work_is_taken_onto_the_page() -> None:
    assert not is_plain("submit_unary_to_echo", 0.7)
    assert not is_plain("to_ceiling", runs(1, 2, 3))
    assert is_plain("cycle", runs(1, 2, 3))


def test_a_setting_is_tried_in_the_lanes_that_it_changes() -> None:
    assert lanes_of({}) == (*BULK, *SINGLE, *WORK)
    assert lanes_of({"CHUNK": 5, "PARALLEL": 2}) == BULK
    assert lanes_of({"POOL": 64}) == SINGLE
    assert lanes_of({"WORKERS": 2}) == WORK


def trial(changed: dict[str, Setting] | None = None, /, **rates: int) -> Trial:
    return {"changed": changed or {}, "settings": "", "rates": rates}


def test_only_what_is_clearly_better_replaces_the_settings_of_the_catalogue() -> None:
    first = trial(bulk=100, single=100, drain=100, cycle=100)
    bulk, single = trial({"CHUNK": 5_000}, bulk=104), trial({"POOL": 64}, single=110)
    work, failed = trial({"WORKERS": 2}, drain=300, cycle=50), trial({"WORKERS": 4})
    assert choose([first, bulk, failed]) == {}
    assert choose([first, bulk, single, work, failed]) == {"POOL": 64, "WORKERS": 2}


def test_a_run_measures_what_the_sweep_chose_unless_the_catalogue_changed_since() -> None:
    peer = BY_NAME["pg_boss"]
    sweep: Sweep = {"measured": "", "options": dict(peer.options), "chosen": {"WORKERS": 3}, "trials": []}
    assert chosen(peer, {"pg_boss": sweep}).workers == 3
    assert "worker processes 3" in chosen(peer, {"pg_boss": sweep}).settings
    sweep["options"]["BATCH"] = 1
    assert chosen(peer, {"pg_boss": sweep}) is peer
    assert chosen(peer, {}) is peer


def test_the_best_setting_has_the_best_drain_and_cycle_together() -> None:
    one_sided, both, bulk_only = trial(drain=40, cycle=1), trial(drain=10, cycle=10), trial(bulk=99)
    assert best([one_sided, both, bulk_only], WORK) is both
    assert best([one_sided, both, bulk_only], BULK) is bulk_only
    assert best([bulk_only], WORK) is None


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_the_catalogue_names_every_setting_and_tries_others(peer: Peer) -> None:
    assert peer.options.keys() == {"WORKERS", *peer.words}
    assert peer.sweep, "each peer gets the best of some settings"
    for changed in peer.sweep:
        assert changed.keys() <= peer.options.keys()
        assert any(peer.options[name] != value for name, value in changed.items()), f"{changed} changes nothing"


def test_rounds_are_interleaved_and_a_resumed_run_does_only_what_is_missing() -> None:
    done: Entry = {"seconds": [30.0, 20.0, 25.0]}
    results: Results = {"machine": {}, "sizes": {}, "peers": {"river": {"seconds": [10.0]}, "saq": done}}
    assert command.remaining(results, ["headgate", "river", "saq"], 3) == [
        *("headgate",),
        *("headgate", "river"),
        *("headgate", "river"),
    ]
    assert command.estimate(results, ["river", "saq", "headgate"]) == 10 + 25 + command.GUESS_SECONDS


def test_without_go_river_is_not_measured_and_reports_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(install, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    entry = command.measure("river", None, Sizes(), {})  # type: ignore[arg-type]  # not reached
    assert entry["missing"] == "not measured: no Go"


def test_the_headline_says_ahead_only_if_no_other_peer_is_level() -> None:
    best, overlapping, slow = runs(5, 6, 7), runs(2, 5, 9), runs(1, 1, 1)
    assert judged_among(runs(8, 9, 10), {"best": best, "slow": slow}, "best") == "ahead, 1.50×"
    assert judged_among(runs(8, 9, 10), {"best": best, "wide": overlapping}, "best") == "level with wide"
    assert judged_among(runs(4, 5, 6), {"best": runs(9, 10, 11), "slow": slow}, "best") == "**behind, 0.50×**"
