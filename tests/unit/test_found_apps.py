"""What `headgate dev` suggests: commands for the handlers it finds in the code of a folder, without importing it."""

from __future__ import annotations

from pathlib import Path

from headgate.cli.dev import suggestions
from headgate.cli.found_apps import find_apps

APP = """
raise SystemExit("this module is read, and never imported")
import headgate
from headgate import Headgate, Job, this_job

hg = headgate.Headgate()
other: Headgate = Headgate("elsewhere:7070")
not_ours = dict()


@hg.job("with-a-model")
async def with_a_model(order: Order) -> None: ...


@hg.cron("0 7 * * *")
@hg.job("mail", max_attempts=5)
def mail(
    job: Job, to: str, count: "int", ratio: float, flags: list[str], extra: dict | None, size: int = 3
) -> None: ...


@hg.job("nothing")
async def nothing(*, job: Job = this_job) -> None: ...


@not_ours.job("no")
def no() -> None: ...
"""
JOBS = """
from shop.app import hg


@hg.job("elsewhere")
async def elsewhere(name): ...
"""


def test_apps_and_topics_are_found_in_modules_and_packages(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "broken.py").write_text("hg = Headgate(")
    (tmp_path / "test_app.py").write_text(APP)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "app.py").write_text("from headgate import Headgate\nhg = Headgate()\n")
    (tmp_path / "shop" / "jobs.py").write_text(JOBS)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "app.py").write_text(APP)
    app, jobs = find_apps(tmp_path)
    assert (app.target, jobs.target) == ("app:hg", "shop.jobs:hg")
    assert [(topic.topic, topic.arguments) for topic in app.topics] == [
        ("with-a-model", None),
        ("mail", {"to": "example", "count": 1, "ratio": 1.5, "flags": [], "extra": {}}),
        ("nothing", {}),
    ]
    assert [topic.command for topic in jobs.topics] == [
        """headgate submit elsewhere '{"name": "example"}' --wait 30s"""
    ]
    worker, submit = suggestions(tmp_path)
    assert worker == "  try        headgate worker app:hg --reload"
    payload = '{"to": "example", "count": 1, "ratio": 1.5, "flags": [], "extra": {}}'
    assert submit == f"             headgate submit mail '{payload}' --wait 30s"


def test_a_folder_without_an_app_is_offered_one(tmp_path: Path) -> None:
    (line,) = suggestions(tmp_path)
    assert "headgate init hello" in line
