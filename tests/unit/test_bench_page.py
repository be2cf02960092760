"""docs/benchmarks.md is made from bench/peers.json, and the plots are what they claim to be."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from copy import deepcopy
from pathlib import Path

import pytest

from bench.peers.page import PAGE, PLOTS, Page
from bench.peers.plots import Row, bars
from bench.peers.processes import Programs
from bench.peers.programs import kit
from bench.peers.readme import README
from bench.peers.results import Figure, Results, load
from bench.peers.sweep import load as load_sweeps

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def results() -> Results:
    return load()


def page_of(results: Results) -> str:
    return Page(results, {}).files()[PAGE]


def section(page: str, heading: str) -> str:
    return page.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def put(figure: Figure, median: float, least: float, most: float, *, runs: int) -> None:
    figure["median"], figure["min"], figure["max"], figure["runs"] = median, least, most, runs


def alike(results: Results) -> Results:
    """The same with all rates 10 (9 … 11) of three runs, and all pickups 5 (4 … 6) ms."""
    changed = deepcopy(results)
    for entry in changed["peers"].values():
        for sizes in entry.get("lanes", {}).values():
            for rate in sizes.values():
                put(rate, 10, 9, 11, runs=3)
        if "pickup" in entry:
            for figure in (entry["pickup"]["p50_ms"], entry["pickup"]["p99_ms"]):
                put(figure, 5, 4, 6, runs=3)
    return changed


def test_the_page_and_its_plots_are_what_the_results_give(results: Results) -> None:
    files = Page(results, load_sweeps()).files()
    assert set(PLOTS.glob("*.svg")) | {PAGE, README} == files.keys(), "run `make bench-docs`"
    for path, content in files.items():
        assert path.read_text() == content, f"{path} is not what bench/peers.json gives: run `make bench-docs`"


def test_every_lane_that_is_lost_is_named(results: Results) -> None:
    changed = alike(results)
    put(changed["peers"]["pgqueuer"]["lanes"]["drain"]["small"], 25, 24, 26, runs=3)
    put(changed["peers"]["graphile_worker"]["pickup"]["p50_ms"], 2.5, 2, 3, runs=3)
    page = page_of(changed)
    lost = section(page, "Where we lose").partition("Level, the spreads overlap:")[0]
    assert "PgQueuer (PostgreSQL) does 2.50 times as many, 25/s (24 … 26) against our 10/s (9 … 11)." in lost
    assert "- idle pickup, p50: Graphile Worker (PostgreSQL) needs 2.5 ms (2 … 3), we 5 ms (4 … 6)." in lost
    assert lost.count("\n- ") == 4, "the two, and what is always said"
    assert "| PgQueuer: 25/s (24 … 26) | **behind, 0.40×** |" in page


def test_what_overlaps_is_called_level_and_not_ahead(results: Results) -> None:
    changed = alike(results)
    put(changed["peers"]["headgate"]["lanes"]["cycle"]["small"], 12, 11, 13, runs=3)
    page = page_of(changed)
    assert "ahead" not in section(page, "Headgate and the best of the others").partition("Rates are")[0]
    assert "- In no lane of this run." in section(page, "Where we lose")
    assert "- cycle, 20,000 jobs: PgQueuer (PostgreSQL) does 0.83 times as many" in section(page, "Where we lose")
    put(changed["peers"]["headgate"]["lanes"]["cycle"]["small"], 12, 11.5, 13, runs=3)
    assert "| ahead, 1.20× |" in section(page_of(changed), "Headgate and the best of the others")


def test_a_single_run_is_marked_and_not_judged(results: Results) -> None:
    changed = alike(results)
    put(changed["peers"]["oban"]["lanes"]["cycle"]["small"], 20, 20, 20, runs=1)
    page = page_of(changed)
    assert "| 1 | 20 (one run) | not judged (fewer than 3 runs) |" in section(page, "Cycle, 20,000 jobs")
    assert "A single run on one side, and faster than ours by it:" in section(page, "Where we lose")
    assert "**Fewer than 3 runs in some lane: oban-py." in page


def test_a_peer_without_figures_is_listed_with_its_reason(results: Results) -> None:
    changed = deepcopy(results)
    changed["peers"]["oban"] = {"measured": "2026-01-01", "missing": "not installed: needs Python 3.12"}
    changed["peers"].pop("saq", None)
    page = page_of(changed)
    absent = page.partition("## Not in these tables")[2].partition("\n## ")[0]
    assert "- oban-py: not installed: needs Python 3.12" in absent
    assert "- SAQ: not measured yet" in absent


def test_what_was_not_measured_is_named_at_the_top_and_below_the_own_lanes(results: Results) -> None:
    changed = deepcopy(results)
    changed["peers"].pop("river", None)
    assert results.get("own")
    changed["own"].pop("sweep_worst", None)
    page = page_of(changed)
    assert "**Not measured yet: River, other settings of each peer (the sweep).**" in page.partition("\n## ")[0]
    assert "; sweep of 1 to 64 sessions, same slots in total" in section(page, "Headgate's own lanes")


def test_nothing_is_compared_with_a_figure_of_jobs_that_do_not_complete(results: Results) -> None:
    """codeq cannot be installed here, and the run it publishes completes no job: no ratio, no claim."""
    page = page_of(results)
    (line,) = [line for line in page.splitlines() if "codeq" in line]
    assert line.startswith("- codeq: not measured")
    assert "×" not in line


@pytest.mark.parametrize("logarithmic", [False, True])
def test_a_longer_bar_is_a_larger_value(*, logarithmic: bool) -> None:
    rows = [Row(label="a < b", value=2.0, text="2"), Row(label="ours", value=200.0, text="200", kind="ours")]
    picture = ElementTree.fromstring(bars("title & more", "note", rows, logarithmic=logarithmic))  # noqa: S314  # ours
    small, large = (float(rect.attrib["width"]) for rect in picture.iter(f"{SVG}rect"))
    assert large > small
    if not logarithmic:
        assert large == pytest.approx(100 * small, rel=0.05)
    assert "prefers-color-scheme: dark" in (picture.findtext(f"{SVG}style") or "")


def test_what_handlers_count_is_what_the_lane_reads(tmp_path: Path) -> None:
    tally = kit.Tally(tmp_path)
    programs = Programs.__new__(Programs)
    programs._folder = tmp_path  # the folder is all that counting needs
    assert programs.count().handled == 0
    for _ in range(3):
        tally.began(kit.BODY)
    tally.began("1".rjust(100))
    count = programs.count()
    assert count.handled == 4
    assert count.first <= count.last
    ((wait,),) = programs.waits().values()
    assert wait > 0
    tally.close()
