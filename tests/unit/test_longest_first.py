"""The order of files under xdist; whatever else a run does with them is pytest's."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support import longest_first


def ordered(folder: Path, *names: str, worker: bool = True) -> list[str]:
    (folder / "tests").mkdir()
    (folder / longest_first.RECORD).write_text(json.dumps({"tests/test_b.py": 9, "tests/test_c.py": 60}))
    config: Any = SimpleNamespace(rootpath=folder)
    if worker:
        config.workerinput = {}
    items: list[Any] = [SimpleNamespace(nodeid=f"tests/{name}") for name in names]
    longest_first.pytest_collection_modifyitems(config, items)
    return [item.nodeid.removeprefix("tests/") for item in items]


NAMES = ("test_a.py::test_2", "test_a.py::test_1", "test_b.py::test_1", "test_c.py::test_2", "test_c.py::test_1")


def test_the_longest_file_comes_first_and_the_tests_of_a_file_stay_as_they_are(tmp_path: Path) -> None:
    assert ordered(tmp_path, *NAMES) == [*NAMES[3:], NAMES[2], *NAMES[:2]]


def test_without_xdist_nothing_is_moved(tmp_path: Path) -> None:
    assert ordered(tmp_path, *NAMES, worker=False) == [*NAMES]
