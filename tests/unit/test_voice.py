"""Plain technical English: the glossary defines each term once, and readers never meet a word that has to be guessed.

Checked are the documentation (without code), the help texts of the CLI, error messages, log events, the pages and
scripts of the dashboard, and the comments and docstrings of the source, SQL included.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from cyclopts import App
from rich.console import Console

from headgate.cli import app
from tests.unit.test_logs import FILES, calls

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/headgate"
GLOSSARY = ROOT / "docs/glossary.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Metaphors, archaic and literary turns, and names that were replaced; each is matched as a whole word or phrase.
BANNED = """
anew; hence; thence; lest; ere; alas; whilst; for ever; whoever; whomever; somebody; nobody; everybody
told; heard; a word from; without a word; has its say; stir; stirs; stirred; stirring; void; plenty; parcel; parcels
crew; keeper; unquiet; patience; hand out; hands out; handed out; handing out; hand-back; hand-backs; handed back
hand back; hands back; held up; hold up; holds up; in good order; as many as you like; so many a second
comes back from the dead; beyond any calendar; all the same; its own affair; the caller's affair; who cannot know
cannot live with; stands in the; stands still; stood still; at its feet; under its feet; in nobody's way; deals out
dealt out; goes on; going on; went on; is said; says so; it says; to no avail; of its own accord; the truth; by hand
wakes up to; room for; is gone; are gone; skin; skins; manieth; the very; now and then
"""
_BANNED = re.compile(
    r"\b(?:" + "|".join(re.escape(one.strip()) for one in re.split(r"[;\n]", BANNED) if one.strip()) + r")\b",
    re.IGNORECASE,
)
_TERM = re.compile(r"^\| \*\*(.+?)\*\* \|", re.MULTILINE)


def prose(page: Path) -> str:
    """The text of a page without code blocks, inline code, link targets and comments."""
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->|``.+?``|`[^`]*`|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", text)


def commands(command: App, *path: str) -> Iterator[tuple[str, ...]]:
    """Every command of the CLI, the root included."""
    yield path
    for name in command:
        if not name.startswith("-"):
            yield from commands(command[name], *path, name)


def help_text(path: tuple[str, ...]) -> str:
    written = io.StringIO()
    app.help_print(list(path), console=Console(file=written, width=1_000))
    return written.getvalue()


def error_texts() -> Iterator[tuple[str, str]]:
    """Every literal of a raised error, with its place."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Raise(exc=ast.Call() as call):
                    pass
                case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__")) as call:
                    pass
                case _:
                    continue
            for part in ast.walk(call):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield f"{path.relative_to(SOURCE)}:{part.lineno}", part.value


def page_texts() -> Iterator[tuple[str, str]]:
    """All text of the dashboard with its place: templates, scripts, and every literal of its modules."""
    web = SOURCE / "web"
    for file in sorted((*web.rglob("templates/**/*.html"), *web.glob("static/js/*.js"))):
        yield str(file.relative_to(SOURCE)), re.sub(r"\{#.*?#\}", "", file.read_text(), flags=re.DOTALL)
    for file in sorted(web.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{file.relative_to(SOURCE)}:{node.lineno}", node.value


def docstrings_and_comments(file: Path) -> Iterator[tuple[int, str]]:
    """The line and the text of each."""
    text = file.read_text()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(value))):
                yield node.lineno, value
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    yield from blocks((one.start[0], one.line, one.string) for one in tokens if one.type == tokenize.COMMENT)


def sql_comments(file: Path) -> Iterator[tuple[int, str]]:
    """The same of a file of SQL."""
    text = file.read_text()
    lines = enumerate(text.splitlines(), 1)
    yield from blocks((number, line, line[line.index("--") :]) for number, line in lines if "--" in line)
    for comment in re.finditer(r"/\*.*?\*/", text, flags=re.DOTALL):
        yield text.count("\n", 0, comment.start()) + 1, comment[0]


def blocks(comments: Iterable[tuple[int, str, str]]) -> Iterator[tuple[int, str]]:
    """Comments, given with their line; consecutive lines without code are one text, since a phrase may span two."""
    first, last, text = 0, -1, ""
    for number, line, comment in comments:
        if number == last + 1 and line.strip() == comment.strip():
            text += " " + comment.lstrip("#- ")
        else:
            yield first, text
            first, text = number, comment
        last = number
    yield first, text


def source_texts() -> Iterator[tuple[str, str]]:
    """All comments and docstrings of the source with their places; generated modules are not read."""
    for file in sorted((*SOURCE.rglob("*.py"), *SOURCE.rglob("*.sql"))):
        if SOURCE / "wire" not in file.parents:
            read = sql_comments if file.suffix == ".sql" else docstrings_and_comments
            for line, text in read(file):
                yield f"{file.relative_to(SOURCE)}:{line}", re.sub(r"\s+", " ", text)


def found(text: str) -> list[str]:
    return [match[0] for match in _BANNED.finditer(text)]


def test_the_check_finds_a_banned_word() -> None:
    assert found("Whoever comes is told anew; a retold tale is not.") == ["Whoever", "told", "anew"]


def test_the_glossary_defines_each_term_once() -> None:
    terms = [term.lower() for term in _TERM.findall(GLOSSARY.read_text())]
    assert len(terms) > 60
    assert sorted(terms) == sorted(set(terms))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_uses_a_banned_word(page: Path) -> None:
    assert found(prose(page)) == []


def test_no_help_text_uses_a_banned_word() -> None:
    texts = {" ".join(path): help_text(path) for path in commands(app)}
    assert len(texts) > 40
    assert {path: words for path, text in texts.items() if (words := found(text))} == {}


def test_no_error_message_uses_a_banned_word() -> None:
    texts = list(error_texts())
    assert len(texts) > 300
    assert [(place, text) for place, text in texts if found(text)] == []


def test_no_log_event_uses_a_banned_word() -> None:
    of_all_files = (call for path in FILES for call in calls(path))
    messages = [
        (call.where, str(call.message.value)) for call in of_all_files if isinstance(call.message, ast.Constant)
    ]
    assert [(where, text) for where, text in messages if found(text.replace("_", " "))] == []


def test_no_page_of_the_dashboard_uses_a_banned_word() -> None:
    texts = list(page_texts())
    assert len([place for place, _ in texts if place.endswith(".html")]) > 50
    assert [(place, words) for place, text in texts if (words := found(text))] == []


def test_no_comment_and_no_docstring_uses_a_banned_word() -> None:
    texts = list(source_texts())
    assert len(texts) > 5_000
    assert len([place for place, _ in texts if ".sql:" in place]) > 500
    assert [(place, words) for place, text in texts if (words := found(text))] == []
