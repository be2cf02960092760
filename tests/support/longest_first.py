"""The files that take longest run first, so that all workers of `make test` end together.

xdist gives whole files in the order of the collection, the next one to a worker that is almost done. A file of a minute
that comes last is a minute in which one of them has nothing to do. How long each takes is in `tests/seconds.json`,
written by `make test-record`; a file that is not in it is taken for a short one. Without xdist nothing is moved.

Files that share a server are given as one, to one worker: others would start a server each, and again after every file
of another folder.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

RECORD = Path("tests", "seconds.json")
TOGETHER = (
    "tests/catalogue/",
    "tests/e2e/dispatch/",
    "tests/e2e/http/",
    "tests/e2e/stream/",
    "tests/e2e/testing_contract/",
    "tests/e2e/web/",
)
"""Folders with a server in a fixture of the package or the session."""


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("RECORD_SECONDS") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(config.rootpath / RECORD), "seconds-recorder")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        seconds: defaultdict[str, int] = defaultdict(int)
        for file, spent in json.loads((config.rootpath / RECORD).read_text(encoding="utf-8")).items():
            seconds[unit(file)] += spent
        items.sort(key=lambda item: -seconds[unit(item.nodeid)])  # stable: a file's tests stay as they are


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    return _Units(config, log) if config.getoption("dist") == "loadfile" else None


def unit(nodeid: str) -> str:
    """What is given to one worker as a whole: a file, or a folder."""
    return next((folder for folder in TOGETHER if nodeid.startswith(folder)), _file(nodeid))


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class _Units(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


class _Recorder:
    def __init__(self, target: Path) -> None:
        self._target = target
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[_file(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        found = {file: round(spent) for file, spent in sorted(self._seconds.items()) if spent >= 1}
        self._target.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
