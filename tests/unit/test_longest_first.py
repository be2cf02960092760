"""The order of files under xdist; whatever else a run does with them is pytest's."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support import longest_first


def ordered(folder: Path, *names: str, worker: bool = True, **seconds: int) -> list[str]:
    (folder / "tests").mkdir()
    recorded = {f"tests/{file}": spent for file, spent in {"test_b.py": 9, "test_c.py": 60, **seconds}.items()}
    (folder / longest_first.RECORD).write_text(json.dumps(recorded))
    config: Any = SimpleNamespace(rootpath=folder)
    if worker:
        config.workerinput = {}
    items: list[Any] = [SimpleNamespace(nodeid=f"tests/{name}") for name in names]
    longest_first.pytest_collection_modifyitems(config, items)
    return [item.nodeid.removeprefix("tests/") for item in items]


def test_folders_that_share_a_server_are_given_to_one_worker_and_count_as_one(tmp_path: Path) -> None:
    names = [
        "test_c.py::test_1",
        "e2e/web/jobs/test_b.py::test_1",
        "e2e/web/test_a.py::test_1",
        "e2e/test_d.py::test_1",
    ]
    assert [longest_first.unit(f"tests/{name}") for name in names] == [
        "tests/test_c.py",
        "tests/e2e/web/",
        "tests/e2e/web/",
        "tests/e2e/test_d.py",
    ]
    found = ordered(tmp_path, *names, **{"e2e/web/test_a.py": 40, "e2e/web/jobs/test_b.py": 30})
    assert found == [*names[1:3], names[0], names[3]]


def test_every_folder_with_a_shared_server_exists() -> None:
    root = Path(__file__).parents[2]
    assert all((root / folder / "conftest.py").is_file() for folder in longest_first.TOGETHER)


NAMES = ("test_a.py::test_2", "test_a.py::test_1", "test_b.py::test_1", "test_c.py::test_2", "test_c.py::test_1")


def test_the_longest_file_comes_first_and_the_tests_of_a_file_stay_as_they_are(tmp_path: Path) -> None:
    assert ordered(tmp_path, *NAMES) == [*NAMES[3:], NAMES[2], *NAMES[:2]]


def test_without_xdist_nothing_is_moved(tmp_path: Path) -> None:
    assert ordered(tmp_path, *NAMES, worker=False) == [*NAMES]
