"""The files that take longest run first, so that two workers of `make test` end together.

xdist hands out whole files in the order of the collection, the next one to whoever is almost done. A file of a minute
that comes last is a minute in which one of them has nothing to do. How long each takes is in `tests/seconds.json`,
written by `make test-record`; a file that is not in it is taken for a short one. Without xdist nothing is moved.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

RECORD = Path("tests", "seconds.json")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("RECORD_SECONDS") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(config.rootpath / RECORD), "seconds-recorder")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        seconds = json.loads((config.rootpath / RECORD).read_text(encoding="utf-8"))
        items.sort(key=lambda item: -seconds.get(_file(item.nodeid), 0))  # stable: a file's tests stay as they are


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class _Recorder:
    def __init__(self, target: Path) -> None:
        self._target = target
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[_file(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        found = {file: round(spent) for file, spent in sorted(self._seconds.items()) if spent >= 1}
        self._target.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
