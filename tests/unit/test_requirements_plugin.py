"""The record of proven requirements stays true over full, partial, failing and interrupted runs."""

from __future__ import annotations

import io
import json
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tools import requirements

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]

THREE_TESTS = """
import pytest

@pytest.mark.req("D10", "P3")
def test_one(): pass

@pytest.mark.req("D2")
def test_two(): pass

@pytest.mark.req("D2")
@pytest.mark.parametrize("n", [1, 2])
def test_many(n): pass
"""


class Project:
    """A small pytest project of its own."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester
        pytester.makeini("[pytest]\ntestpaths = tests\nmarkers = req(*numbers): x\n")
        self.folder = pytester.path / "tests"
        self.folder.mkdir()

    def write(self, text: str, name: str = "test_it.py") -> None:
        (self.folder / name).write_text(text)

    def run(self, *arguments: str) -> pytest.RunResult:
        plugins = ["-p", "tests.support.requirements_plugin", "-p", "no:cacheprovider", "-p", "no:asyncio"]
        return self._pytester.runpytest_inprocess(*plugins, *arguments)

    def proven(self) -> dict[str, list[str]]:
        text = (self._pytester.path / "build" / "requirements.json").read_text()
        return {number: [test.split("::")[1] for test in tests] for number, tests in json.loads(text).items()}


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return Project(pytester)


def test_numbers_lead_to_the_tests_that_passed_in_natural_order(project: Project) -> None:
    project.write(THREE_TESTS)
    project.run().assert_outcomes(passed=4)
    assert project.proven() == {
        "D2": ["test_many[1]", "test_many[2]", "test_two"],
        "D10": ["test_one"],
        "P3": ["test_one"],
    }
    assert list(project.proven()) == ["D2", "D10", "P3"]


def test_only_a_test_that_passed_to_its_end_proves_anything(project: Project) -> None:
    project.write("""
import pytest
@pytest.fixture
def bad_end():
    yield
    raise RuntimeError
@pytest.mark.req("D1")
def test_failed(): assert False
@pytest.mark.req("D2")
def test_teardown(bad_end): pass
@pytest.mark.req("D3")
@pytest.mark.skip
def test_skipped(): pass
@pytest.mark.req("D4")
@pytest.mark.xfail
def test_xfailed(): assert False
@pytest.mark.req("D5")
@pytest.mark.xfail
def test_xpassed(): pass
@pytest.mark.req("D6")
def test_passed(): pass
""")
    project.run()
    assert project.proven() == {"D6": ["test_passed"]}


@pytest.mark.parametrize("limit", [["-k", "test_two"], ["tests/test_it.py::test_two"], ["--deselect=tests/test_it.py"]])
def test_a_limited_run_keeps_what_it_did_not_run(project: Project, limit: list[str]) -> None:
    project.write(THREE_TESTS)
    project.run()
    before = project.proven()
    project.write("def test_other(): pass", "test_other.py")
    project.run(*limit)
    assert project.proven() == before


def test_a_test_that_now_fails_loses_its_entry_also_in_a_limited_run(project: Project) -> None:
    project.write(THREE_TESTS)
    project.run()
    project.write(THREE_TESTS.replace("def test_one(): pass", "def test_one(): assert False"))
    project.run("-k", "test_one")
    assert list(project.proven()) == ["D2"]


def test_a_test_that_is_gone_is_dropped_once_the_whole_tree_was_collected(project: Project) -> None:
    project.write(THREE_TESTS)
    project.run()
    project.write(THREE_TESTS.replace("test_one", "test_renamed"))
    project.run("tests/test_it.py::test_two")
    assert project.proven()["D10"] == ["test_one"], "a run of one test cannot know what else exists"
    project.run("-k", "test_renamed")
    assert project.proven()["D10"] == ["test_renamed"]
    assert len(project.proven()["D2"]) == 3


def test_tests_of_a_file_that_is_gone_are_dropped_by_any_run(project: Project) -> None:
    project.write(THREE_TESTS)
    project.write('import pytest\n@pytest.mark.req("D7")\ndef test_other(): pass', "test_other.py")
    project.run()
    (project.folder / "test_it.py").rename(project.folder / "test_moved.py")
    project.run("tests/test_other.py")  # as the controller of xdist, which collects nothing itself
    assert list(project.proven()) == ["D7"]


def test_a_file_that_fails_to_import_does_not_erase_its_entries(project: Project) -> None:
    project.write(THREE_TESTS)
    project.write("def test_other(): pass", "test_other.py")
    project.run()
    before = project.proven()
    project.write("import nothing_of_that_name", "test_it.py")
    project.run("--continue-on-collection-errors")
    assert project.proven() == before


def test_listing_tests_records_nothing(project: Project) -> None:
    project.write(THREE_TESTS)
    project.run("--collect-only")
    assert not (project.folder.parent / "build").exists()


@pytest.mark.parametrize("mark", ['"Q7"', '"D"', '"D6 "', '"d6"', "6", "", 'number="D6"'])
def test_an_unknown_number_stops_the_run_and_is_named(project: Project, mark: str) -> None:
    project.write(f"import pytest\n@pytest.mark.req({mark})\ndef test_it(): pass\n")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it.py::test_it: @pytest.mark.req takes requirement numbers*"])


def run_tool(folder: Path) -> str:
    """What `make requirements` prints in this folder."""
    printed = io.StringIO()
    with chdir(folder), redirect_stdout(printed):
        assert requirements.main() == 0
    return printed.getvalue()


def test_the_table_has_every_number_with_its_proof_or_as_open(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "requirements.json").write_text(
        json.dumps({"P1": ["tests/a.py::test_x"], "D2": ["tests/a.py::test_y", "b"]})
    )
    (tmp_path / "build" / "faults.json").write_text(json.dumps({"F10": "passed", "F33": "not run"}))
    lines = run_tool(tmp_path).splitlines()
    assert {
        "D2   tests/a.py::test_y", "     b", "P1   tests/a.py::test_x", "P2   open", "F10  make faults, F10: passed",
        "F33  open: a scenario has not passed", "     make faults, F33: not run", "     make faults, F48: not run here",
    } <= set(lines)  # fmt: skip
    (totals,) = [line for line in lines if " have a proof; open: " in line]
    assert " F33," in totals
    assert " F10," not in totals


@pytest.mark.parametrize(
    ("verdicts", "first"),
    [
        ({}, "open: a scenario has not passed"),
        ({"F31": "FAILED"}, "open: a scenario has not passed"),
        ({"F31": "not run"}, "open: a scenario has not passed"),
        ({"F31": "passed"}, "make faults, F31: passed"),
    ],
)
def test_a_test_of_a_fault_is_listed_and_replaces_no_verdict(
    tmp_path: Path, verdicts: dict[str, str], first: str
) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "requirements.json").write_text(json.dumps({"F31": ["tests/a.py::test_x"]}))
    (tmp_path / "build" / "faults.json").write_text(json.dumps(verdicts))
    shown = shown_for(tmp_path, "F31")
    assert (shown[0], shown[-1]) == (first, "tests/a.py::test_x")
    assert f"make faults, F31: {verdicts.get('F31', 'not run here')}" in shown


def test_a_fault_with_variants_needs_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "requirements.json").write_text("{}")
    for verdicts, first in (
        ({"F58": "passed"}, "open: a scenario has not passed"),
        ({"F58": "passed", "F58b": "passed"}, "make faults, F58: passed"),
    ):
        (tmp_path / "build" / "faults.json").write_text(json.dumps(verdicts))
        assert shown_for(tmp_path, "F58")[0] == first


def test_a_fault_without_a_scenario_is_shown_by_its_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "SCENARIOS", [])
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "requirements.json").write_text(json.dumps({"F31": ["tests/a.py::test_x"]}))
    assert shown_for(tmp_path, "F31") == ["tests/a.py::test_x"]
    assert shown_for(tmp_path, "F32") == ["open"]


def shown_for(folder: Path, number: str) -> list[str]:
    """The lines of a number, without it."""
    lines = run_tool(folder).splitlines()
    (start,) = [place for place, line in enumerate(lines) if line.startswith(f"{number} ")]
    more = next(place for place in range(start + 1, len(lines)) if not lines[place].startswith("     "))
    return [line[5:] for line in lines[start:more]]


def test_a_number_with_a_measured_row_needs_its_tests_and_a_verdict_that_holds(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "bench").mkdir()
    (tmp_path / "build" / "requirements.json").write_text(json.dumps({"T4": ["tests/a.py::test_x"], "F45": ["b"]}))
    (tmp_path / "build" / "faults.json").write_text(json.dumps({"F43": "elsewhere make failover"}))
    row = "make bench, refill of a freed slot, ms"
    missing = ["open: not measured here", "tests/a.py::test_x", f"{row}: not measured here"]
    assert shown_for(tmp_path, "T4") == missing
    assert shown_for(tmp_path, "F43") == ["open: shown by `make failover`, which leaves no record"]
    assert shown_for(tmp_path, "F45")[0].startswith("open: ")
    for verdict, first in (("BROKEN", "open: the bound is missed"), ("holds", "tests/a.py::test_x")):
        verdicts = {"refill of a freed slot, ms": {"verdict": verdict}, "loaded_80_p50_ms": {"verdict": "holds"}}
        (tmp_path / "bench" / "latest.json").write_text(json.dumps({"verdicts": verdicts}))
        assert (shown_for(tmp_path, "T4")[0], shown_for(tmp_path, "T4")[-1]) == (first, f"{row}: {verdict}")
    assert shown_for(tmp_path, "T43")[0] == "open: not measured here"  # one of its rows was


def test_the_held_snapshot_counts_only_for_ten_minutes(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "bench").mkdir()
    (tmp_path / "build" / "requirements.json").write_text("{}")
    assert shown_for(tmp_path, "T40")[0] == "open: not measured here"
    minute = {"claim_index_pages_per_job": 1.0, "claim_us_per_job": 1.0, "e2e_p99": 1.0, "completed": 1.0}
    kept = {"acked": 1, "completed": 1, "twice": 0, "left": 0, "other_end": 0, "same_ids": True}
    for minutes, first in (
        ([minute] * 9, "open: not measured here"),
        ([minute] * 9 + [minute | {"e2e_p99": 2.0}], "open: the bound is missed"),
        ([minute] * 10, "make bench-long, held: claim index pages a job, highest later minute / first: holds"),
    ):
        held = {"held": {"minutes": minutes, "conserved": kept}}
        (tmp_path / "bench" / "latest-long.json").write_text(json.dumps(held))
        assert shown_for(tmp_path, "T40")[0] == first


def test_without_a_record_the_tool_says_how_to_get_one(tmp_path: Path) -> None:
    said = io.StringIO()
    with chdir(tmp_path), redirect_stderr(said):
        assert requirements.main() == 1
    assert "make test" in said.getvalue()
