"""Rows 74-80: what can be wrong with a command line itself."""

from __future__ import annotations

from tests.catalogue.table import Case


def _cli(row: int, name: str, *says: str, line: tuple[str, ...], exits: int = 2, stdin: bytes = b"") -> Case:
    return Case(row=row, name=name, says=says, cli=line, exits=exits, stdin=stdin)


CASES: list[Case] = [
    _cli(74, "an unknown command", 'unknown command "submitt"', "submit", line=("submitt", "mail")),
    _cli(74, "an unknown verb", "obliterate", "cancel, redrive", line=("job", "obliterate")),
    _cli(74, "an unknown option", "unknown option", "--priority", line=("submit", "mail", "--prioritty", "5")),
    _cli(74, "an option without its value", "--priority", line=("submit", "mail", "--priority")),
    _cli(74, "nothing to act on", "topic", line=("submit",)),
    _cli(74, "one argument too many", "unexpected", line=("submit", "mail", "{}", "more")),
    _cli(74, "a word where a number is due", "--max-attempts", line=("submit", "mail", "--max-attempts", "many")),
    _cli(74, "a choice that is none", "--on-conflict", line=("submit", "mail", "--on-conflict", "fight")),
    _cli(75, "an argument that is no JSON", "payload", "line 1, column 2", line=("submit", "mail", "{oops}")),
    _cli(
        75,
        "input that is no JSON",
        "standard input",
        "line 2, column 1",
        line=("submit", "mail", "-"),
        stdin=b'{"a":\n}',
    ),
    _cli(
        75,
        "input that is no text",
        "standard input",
        "UTF-8",
        line=("submit", "mail", "-"),
        stdin=b"\xff\xfe{}\x00\x80",
    ),
    _cli(75, "input nested too deep", "payload", "nested too deep", line=("submit", "mail", "-"), stdin=b"[" * 100_000),
    _cli(75, "a file that is not there", "missing.json", "No such file", line=("submit", "mail", "@missing.json")),
    _cli(75, "a folder for a file", "cannot be read", line=("submit", "mail", "@/")),
    _cli(76, "a time in words", "--at", "2026-12-24T18:00:00Z", line=("submit", "mail", "--at", "yesterdayish")),
    _cli(76, "a unit nobody uses", "--delay", "30s, 5m, 2h or 1d", line=("submit", "mail", "--delay", "5 fortnights")),
    _cli(76, "a span past any calendar", "--delay", "30s", line=("submit", "mail", "--delay", "99999999999d")),
    _cli(76, "an empty time", "--at", line=("submit", "mail", "--at", "")),
    _cli(76, "a rate that is none", "--rate", "100/1s", line=("topic", "set", "mail", "--rate", "fast")),
    _cli(
        77,
        "a bulk verb that nobody confirms",
        "--yes",
        "--dry-run",
        line=("bulk", "start", "cancel", "--filter", "topic:mail"),
    ),
    _cli(77, "dead letters that nobody confirms", "--yes", line=("dead", "discard", "*")),
    _cli(78, "a URL with a path", "url", "host:port", line=("status", "--url", "http://127.0.0.1:7070/api")),
    _cli(78, "another scheme", "url", "host:port", line=("status", "--url", "ftp://127.0.0.1")),
    _cli(78, "a port that is none", "url", "host:port", line=("status", "--url", "127.0.0.1:99999")),
    _cli(78, "a bracket too many", "url", "host:port", line=("status", "--url", "[[::1]")),
]
