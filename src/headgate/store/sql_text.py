"""Cut a file of SQL into its statements, so that an error can be given the line of the statement it belongs to.

It knows what can hide a semicolon: comments, quotes, dollar quotes. It does not know SQL. A body in the form BEGIN
ATOMIC has bare semicolons inside; it is refused rather than cut wrongly (write the body in dollar quotes).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Ordered: the first alternative that fits wins. A word is taken whole, so that neither the e of `name'…'` nor the $ of
# `a$b$c` is read as the start of a quote.
_TOKEN = re.compile(
    r"""
      (?P<blank>    \s+ | --[^\n]* )
    | (?P<comment>  /\* )
    | (?P<quoted>   [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" )
    | (?P<dollar>   \$(?:[^\W\d]\w*)?\$ )
    | (?P<word>     [^\W\d][\w$]* )
    | (?P<end>      ; )
    | (?P<other>    . )
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")


class UnreadableSqlError(Exception):
    """The text cannot be cut into statements; `line` counts from 1."""

    def __init__(self, problem: str, *, line: int) -> None:
        super().__init__(problem)
        self.problem, self.line = problem, line


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement without its semicolon; `line` (from 1) is the line of its first word in the whole text."""

    text: str
    line: int
    words: tuple[str, ...]  # its bare words in upper case; what stands in quotes or comments is not among them

    def line_of(self, position: int) -> int:
        """The line, in the whole text, of the character at `position` (from 1, as PostgreSQL counts)."""
        return self.line + self.text.count("\n", 0, position - 1)


def statements(text: str) -> list[Statement]:
    """The statements of `text` in order; comments between them are left out."""
    found: list[Statement] = []
    words: list[str] = []
    begin: int | None = None  # where the current statement's first token stands
    end = at = 0  # `end`: just after its last token so far
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:  # pragma: no cover - `other` takes any character
            raise AssertionError(text[at])
        kind, begins_at, at = token.lastgroup, at, token.end()
        match kind:
            case "blank":
                continue
            case "comment":
                at = _end_of_comment(text, begins_at)
                continue
            case "end":
                if begin is not None:
                    found.append(_statement(text, begin, end, words))
                begin, words = None, []
                continue
            case "dollar":
                close = text.find(token.group(), at)
                if close < 0:
                    raise UnreadableSqlError(f"{token.group()} is never closed", line=_line(text, begins_at))
                at = close + len(token.group())
            case "word":
                words.append(token.group().upper())
                if words[-2:] == ["BEGIN", "ATOMIC"]:
                    problem = "BEGIN ATOMIC cannot be used here; write the body in dollar quotes"
                    raise UnreadableSqlError(problem, line=_line(text, begins_at))
            case "other" if token.group() in "'\"":  # a whole quote would have been taken above
                raise UnreadableSqlError(f"{token.group()} is never closed", line=_line(text, begins_at))
        begin = begins_at if begin is None else begin
        end = at
    if begin is not None:
        found.append(_statement(text, begin, end, words))
    return found


def _statement(text: str, begin: int, end: int, words: list[str]) -> Statement:
    return Statement(text=text[begin:end], line=_line(text, begin), words=tuple(words))


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _end_of_comment(text: str, begin: int) -> int:
    depth = 0  # PostgreSQL lets /* */ nest
    for edge in _COMMENT_EDGE.finditer(text, begin):
        depth += 1 if edge.group() == "/*" else -1
        if depth == 0:
            return edge.end()
    raise UnreadableSqlError("/* is never closed", line=_line(text, begin))
