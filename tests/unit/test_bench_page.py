"""docs/benchmarks.md is made from bench/peers.json, and the plots are what they claim to be."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from copy import deepcopy
from pathlib import Path

import pytest

from bench.peers.plots import Row, bars
from bench.peers.processes import Programs
from bench.peers.programs import kit
from bench.peers.report import PAGE, PLOTS, Page
from bench.peers.results import Results, load

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def results() -> Results:
    return load()


def test_the_page_and_its_plots_are_what_the_results_give(results: Results) -> None:
    files = Page(results).files()
    assert set(PLOTS.glob("*.svg")) | {PAGE} == files.keys(), "run `make bench-docs`"
    for path, content in files.items():
        assert path.read_text() == content, f"{path} is not what bench/peers.json gives: run `make bench-docs`"


def test_every_lane_that_is_lost_is_named(results: Results) -> None:
    changed = deepcopy(results)
    for entry in changed["peers"].values():
        for sizes in entry.get("lanes", {}).values():
            for rate in sizes.values():
                rate["rate"] = 10
    fastest = changed["peers"]["pgqueuer"]
    fastest["lanes"]["drain"][next(iter(fastest["lanes"]["drain"]))]["rate"] = 25
    page = Page(changed).files()[PAGE]
    losses = page.partition("## Where we lose")[2].partition("\n## ")[0]
    assert "PgQueuer (PostgreSQL) does 2.50×" in losses
    assert "| **no** |" in page


def test_a_peer_without_figures_is_listed_with_its_reason(results: Results) -> None:
    changed = deepcopy(results)
    changed["peers"]["oban"] = {"measured": "2026-01-01", "missing": "not installed: needs Python 3.12"}
    changed["peers"].pop("saq", None)
    page = Page(changed).files()[PAGE]
    absent = page.partition("## Not in these tables")[2].partition("\n## ")[0]
    assert "- oban-py: not installed: needs Python 3.12" in absent
    assert "- SAQ: not measured yet" in absent


def test_nothing_is_compared_with_a_figure_of_jobs_that_do_not_complete(results: Results) -> None:
    """codeq cannot be installed here, and the run it publishes completes no job: no ratio, no claim."""
    page = Page(results).files()[PAGE]
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
