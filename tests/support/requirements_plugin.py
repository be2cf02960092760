"""Write down which numbered requirements are proven by tests that passed: `build/requirements.json`.

A test says what it proves with `@pytest.mark.req("D6", "P3")`. The file is one object, number -> sorted test ids, and
is kept true over many partial runs by two rules:

1. A test that ran loses all its old entries; it gets new ones only if it passed. Skipped, failed, expected-to-fail and
   interrupted tests prove nothing. A test that did not run (-k, a path, -x) keeps what it had.
2. If the whole tree was collected (no path on the command line, nothing ignored, no file that failed to import), an
   entry of a test that was not collected is dropped: that test no longer exists.

So a full run leaves exactly what it proved, and a run of one file changes only that file's entries.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections import defaultdict
from pathlib import Path

import pytest

NUMBER = re.compile(r"(D|P|Z|C|W|R|L|H|O|K|T|E|B|M|S|J|X|F|I)\d+")


def pytest_configure(config: pytest.Config) -> None:
    # Under xdist only the controller writes: every worker's reports reach it, with their numbers in user_properties.
    # Without tests to run there is nothing to record.
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        config.pluginmanager.register(_Recorder(config), "requirements-recorder")


def pytest_itemcollected(item: pytest.Item) -> None:
    for mark in item.iter_markers("req"):
        bad = [number for number in mark.args if not (isinstance(number, str) and NUMBER.fullmatch(number))]
        if bad or mark.kwargs or not mark.args:
            shown = ", ".join(map(repr, bad)) or "nothing"
            raise pytest.UsageError(
                f"{item.nodeid}: @pytest.mark.req takes requirement numbers such as "
                f'"D6", and was given {shown}; known series: {NUMBER.pattern}'
            )
        item.user_properties.extend(("req", number) for number in mark.args)


class _Recorder:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ran: set[str] = set()
        self._passed: dict[str, list[str]] = {}
        self._failed: set[str] = set()
        self._collected: set[str] = set()
        option = config.option
        self._whole_tree = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not (
            option.ignore or option.ignore_glob or getattr(option, "lf", False)
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._whole_tree = False

    @pytest.hookimpl(tryfirst=True)  # before -k, -m and --deselect take items away: those tests exist anyway
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._collected.update(item.nodeid for item in items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._ran.add(report.nodeid)
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            self._passed[report.nodeid] = [str(number) for key, number in report.user_properties if key == "req"]

    def pytest_sessionfinish(self) -> None:
        if not self._ran:
            return
        folder = self._config.rootpath / "build"
        folder.mkdir(exist_ok=True)
        # Two runs may end at once, in two terminals: each must see what the other wrote.
        with (folder / "requirements.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            target = folder / "requirements.json"
            self._write(target, self._merged(_read(target)))

    def _merged(self, before: dict[str, list[str]]) -> dict[str, list[str]]:
        proven: defaultdict[str, set[str]] = defaultdict(set)
        for number, tests in before.items():
            for test in tests:
                # Without items of our own (the controller of xdist) it is unknown what exists: keep.
                gone = self._whole_tree and bool(self._collected) and test not in self._collected
                gone = gone or not (self._config.rootpath / test.partition("::")[0]).exists()
                if test not in self._ran and not gone:
                    proven[number].add(test)
        for test, numbers in self._passed.items():
            if test not in self._failed:
                for number in numbers:
                    proven[number].add(test)
        return {number: sorted(proven[number]) for number in sorted(proven, key=natural)}

    @staticmethod
    def _write(target: Path, proven: dict[str, list[str]]) -> None:
        # Replaced in one step: a reader never sees half a file.
        fresh = target.with_suffix(".json.new")
        fresh.write_text(json.dumps(proven, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(fresh, target)


def _read(target: Path) -> dict[str, list[str]]:
    try:
        found = json.loads(target.read_text(encoding="utf-8"))
        return {str(number): [str(test) for test in tests] for number, tests in found.items()}
    except (FileNotFoundError, ValueError, AttributeError, TypeError):
        return {}  # a damaged file is only a report: the next full run makes it whole


def natural(number: str) -> tuple[str, int]:
    """D2 before D10."""
    return number[0], int(number[1:])
