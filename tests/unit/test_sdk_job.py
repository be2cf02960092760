"""A handler's Job shows what is documented for handlers, and nothing of the worker's own state."""

from __future__ import annotations

import re
from pathlib import Path

from headgate import Job
from headgate.sdk.worker.held_job import HeldJob
from headgate.testing import fake_job

DOCS = Path(__file__).parents[2] / "docs" / "howto" / "workers.md"


def documented() -> set[str]:
    """The members in the table of docs/howto/workers.md."""
    table = DOCS.read_text().partition("gets:\n\n| member | meaning |")[2].partition("\n\n")[0]
    first_column = [line.split(" | ")[0] for line in table.splitlines()]
    return {name for cell in first_column for name in re.findall(r"`(\w+)[^`]*`", cell)}


def test_a_job_shows_its_documented_members_and_no_others() -> None:
    job = fake_job()
    assert type(job) is HeldJob  # as a worker makes it
    assert {name for name in dir(job) if not name.startswith("__")} == documented()
    assert all(hasattr(job, name) for name in documented())


def test_the_type_that_handlers_annotate_has_the_same_members() -> None:
    assert {name for name in vars(Job) if not name.startswith("_")} == documented()
    assert not {name for name in documented() if name in vars(HeldJob)}
