"""Migration files are understood as written, or refused with file and line; statements are cut where SQL ends them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.domain.errors import MigrationFailed
from headgate.store.migration_files import load, newest
from headgate.store.sql_text import UnreadableSqlError, statements


def folder(root: Path, **files: str) -> Path:
    """A source folder; names have _ for / and no ending."""
    (root / "migrations").mkdir(exist_ok=True)
    (root / "functions").mkdir(exist_ok=True)
    for name, text in files.items():
        kind, _, rest = name.partition("_")
        (root / {"m": "migrations", "f": "functions"}[kind] / f"{rest}.sql").write_text(text)
    return root


def test_the_packaged_files_are_sound() -> None:
    found = load()
    assert [migration.number for migration in found] == list(range(1, len(found) + 1))
    assert newest() == found[-1].number


def test_an_empty_folder_is_a_release_without_migrations(tmp_path: Path) -> None:
    assert load(folder(tmp_path)) == ()


def test_headers_are_read(tmp_path: Path) -> None:
    one, two = load(
        folder(
            tmp_path,
            m_0001_a="SELECT 1;",
            m_0002_b="-- headgate: no transaction\n-- Why.\n-- compatible with: 1\nSELECT 2;\n",
        )
    )
    assert (one.transactional, one.compatible_with) == (True, None)
    assert (two.transactional, two.compatible_with) == (False, 1)


def test_an_included_file_replaces_its_line_and_keeps_its_own_line_numbers(tmp_path: Path) -> None:
    source = folder(
        tmp_path,
        m_0001_a="SELECT 1;\n-- include: functions/claim_v1.sql\nSELECT 3;\n",
        f_claim_v1="-- Head.\nSELECT 2;\n",
    )
    (migration,) = load(source)
    assert migration.text == "SELECT 1;\n-- Head.\nSELECT 2;\nSELECT 3;\n"
    assert [migration.where(statement.line) for statement in migration.statements] == [
        "migrations/0001_a.sql, line 1",
        "functions/claim_v1.sql, line 2",
        "migrations/0001_a.sql, line 3",
    ]


def test_line_ends_of_another_system_do_not_change_the_checksum(tmp_path: Path) -> None:
    source = folder(tmp_path, m_0001_a="SELECT 1;\nSELECT 2;\n")
    before = load(source)[0].checksum
    (source / "migrations" / "0001_a.sql").write_bytes(b"SELECT 1;\r\nSELECT 2;\r\n")
    assert load(source)[0].checksum == before


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"m_0001_a": "SELECT 1", "m_0001_b": "SELECT 1"}, "0001_a.sql and migrations/0001_b.sql have the same number"),
        ({"m_0001_a": "SELECT 1", "m_0003_b": "SELECT 1"}, "0003_b.sql: number 0002 is missing before it"),
        ({"m_0002_a": "SELECT 1"}, "0002_a.sql: number 0001 is missing before it"),
        ({"m_1_a": "SELECT 1"}, "1_a.sql: the name must look like"),
        ({"m_0001_Base": "SELECT 1"}, "0001_Base.sql: the name must look like"),
        ({"m_0001": "SELECT 1"}, "0001.sql: the name must look like"),
        ({"m_0001_a": ""}, "0001_a.sql is empty"),
        ({"m_0001_a": "-- nothing\n"}, "0001_a.sql has no statement"),
        ({"m_0001_a": "-- include: functions/no.sql\n"}, "0001_a.sql, line 1: there is no functions/no.sql"),
        ({"m_0001_a": "-- include: ../secret.sql\n"}, "0001_a.sql, line 1: not understood"),
        ({"m_0001_a": "--Include: functions/a.sql\n"}, "0001_a.sql, line 1: not understood"),
        ({"m_0001_a": "SELECT 1;\n-- compatible with: 0\n"}, "0001_a.sql, line 2: not understood or out of place"),
        ({"m_0001_a": "-- compatible with: two\nSELECT 1;"}, "0001_a.sql, line 1: not understood"),
        ({"m_0001_a": "-- compatible with: 1\nSELECT 1;"}, "line 1: compatible with 1 says nothing"),
        ({"m_0001_a": "-- Hi.\n-- headgate: no transaction\nSELECT 1;"}, "line 2: not understood or out of place"),
        ({"m_0001_a": "SELECT 1;\nBEGIN;\n"}, "0001_a.sql, line 2: BEGIN is not allowed"),
        ({"m_0001_a": "SELECT 1; commit"}, "0001_a.sql, line 1: COMMIT is not allowed"),
        ({"m_0001_a": "SELECT 'open;\n"}, "0001_a.sql, line 1: ' is never closed"),
        ({"m_0001_a": "-- include: functions/a.sql", "f_a": "-- include: functions/b.sql"}, "cannot include another"),
    ],
)
def test_a_folder_that_is_not_sound_is_refused_with_the_place(
    tmp_path: Path, files: dict[str, str], problem: str
) -> None:
    with pytest.raises(MigrationFailed) as caught:
        load(folder(tmp_path, **files))
    assert problem in str(caught.value)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (folder(tmp_path) / "migrations" / "0001_a.sql").write_bytes(b"SELECT '\xff';")
    with pytest.raises(MigrationFailed, match=r"0001_a\.sql is not UTF-8 at byte 8"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" ; ;; ", []),
        ("a; b", ["a", "b"]),
        ("a -- x; y\n; b", ["a", "b"]),
        ("a /* ; /* ; */ ; */ b; c", ["a /* ; /* ; */ ; */ b", "c"]),
        ("a ';''; ' b; c", ["a ';''; ' b", "c"]),
        (r"a E'\'; ' b; c", [r"a E'\'; ' b", "c"]),
        (r"a '\'; b", [r"a '\'", "b"]),
        ('a "; ""; " b; c', ['a "; ""; " b', "c"]),
        ("a $$ ; ' $$ b; c", ["a $$ ; ' $$ b", "c"]),
        ("a $x$ ; $$ ; $x$ b; c", ["a $x$ ; $$ ; $x$ b", "c"]),
        ("a$b$c; d", ["a$b$c", "d"]),
        ("a $1; b $2", ["a $1", "b $2"]),
        ("name'x;'; b", ["name'x;'", "b"]),
        ("a € 'ä;ö'; b", ["a € 'ä;ö'", "b"]),
    ],
)
def test_statements_end_only_at_bare_semicolons(text: str, expected: list[str]) -> None:
    assert [statement.text for statement in statements(text)] == expected


def test_a_statement_knows_its_line_and_that_of_any_position_in_it() -> None:
    _, second = statements("-- one\nSELECT 1;\n\n/* two\n*/ SELECT\n  2")
    assert second.line == 5
    assert second.line_of(second.text.index("2") + 1) == 6
    assert second.words == ("SELECT",)


@pytest.mark.parametrize(
    "text", ["'", 'a "b', "/* /* */", "$$ a", "\n\nCREATE FUNCTION f() BEGIN ATOMIC SELECT 1; END"]
)
def test_text_that_cannot_be_cut_is_refused(text: str) -> None:
    with pytest.raises(UnreadableSqlError) as caught:
        statements(text)
    assert caught.value.line == text.count("\n") + 1
