"""Every SQL example in the documentation runs, in order, on a fresh database; numbers in tables are the real ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headgate.domain.states import EventKind, OutcomeKind, State
from headgate.store.connect import Connection

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _examples(page: Path) -> list[str]:
    return re.findall(r"^```sql\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if _examples(page)], ids=lambda page: page.name)
async def test_sql_examples_run(db: Connection, page: Path) -> None:
    await db.execute("SET search_path = public")  # as a user's own session has it
    try:
        for example in _examples(page):
            await db.execute(example)
    finally:  # roles belong to the server, not to the database that is dropped
        await db.execute(
            """DO $$ BEGIN
                   IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'app') THEN DROP OWNED BY app; DROP ROLE app; END IF;
               END $$"""
        )


def test_the_reference_names_every_number() -> None:
    text = (ROOT / "docs/reference/sql.md").read_text()
    for word in (*State, *OutcomeKind, *EventKind):
        label = word.label.replace("_", " ").replace("completed after cancel", "completed after a cancel was requested")
        assert f"| {int(word)} | {label} |" in text, word


def test_the_page_on_high_availability_prints_the_files_that_make_failover_uses() -> None:
    page = (ROOT / "docs/operations/high-availability.md").read_text()
    files = sorted((ROOT / "docs/operations/ha").iterdir())
    assert files
    for file in files:
        assert f"\n{file.read_text()}```\n" in page, f"{file.name} is printed differently"
