"""What templates show of payloads, tracebacks and commands."""

from __future__ import annotations

import json
import shlex

import pytest

from headgate.domain.envelope import MAGIC
from headgate.domain.redaction import MASK, Redaction
from headgate.web.models import commands
from headgate.web.models.bodies import DEPTH_MAX, OPEN_MAX, SHOWN_MAX_BYTES, TOKENS_MAX, Token, body_of
from headgate.web.models.tracebacks import folded

HIDING = Redaction()


def outline(tree: list[Token]) -> str:
    """A tree as JSON again."""
    text, first = "", True
    for token in tree:
        if token.step == "close":
            text, first = text + ("}" if token.type == "object" else "]"), False
            continue
        text += "" if first else ","
        text += "" if token.key is None else json.dumps(token.key) + ":"
        text += token.text if token.step == "leaf" else "{" if token.type == "object" else "["
        first = token.step == "open"
    return text


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1.5e300,
        2**80,
        "",
        "<script>alert(1)</script>",
        "a\nb\u2028\x00",
        [],
        {},
        [[], {}, [[1]]],
        {"a": {"b": [1, 2, {"c": None}]}, "": "empty name", "é": "ü"},
    ],
)
def test_a_tree_shows_every_kind_of_json_whole(value: object) -> None:
    body = body_of(json.dumps(value).encode(), HIDING)
    assert body.kind == "json"
    assert json.loads(outline(list(body.tree))) == value


def test_secret_values_are_masked_in_a_tree_and_marked() -> None:
    body = body_of(b'{"user": "ada", "password": "hunter2"}', HIDING)
    assert body.masked
    assert [(one.key, one.type, one.text) for one in body.tree if one.step == "leaf"] == [
        ("user", "string", '"ada"'),
        ("password", "masked", MASK),
    ]
    assert "hunter2" not in repr(body)


def test_a_deep_or_wide_value_costs_no_recursion() -> None:
    deep = body_of(b"[" * 900 + b"]" * 900, HIDING)
    assert deep.kind == "json"
    assert sum(one.step == "open" for one in deep.tree) == DEPTH_MAX
    wide = body_of(json.dumps(list(range(OPEN_MAX + 1))).encode(), HIDING)
    assert not wide.tree[0].unfolded
    assert body_of(json.dumps([0] * TOKENS_MAX).encode(), HIDING).kind == "text"  # too many parts for a tree


@pytest.mark.parametrize(
    ("raw", "kind", "part"),
    [
        (None, "empty", ""),
        (b"", "empty", ""),
        (b"plain text\n", "text", "plain text"),
        (b"password=hunter2", "text", f"password={MASK}"),
        (b"\x00\x01\xff<script>", "binary", "00 01 ff 3c 73"),
        (b"ab\x07", "binary", "61 62 07"),
        (MAGIC + b"\x09" * 40, "encrypted", "encrypted"),
        (b'"' + b"x" * SHOWN_MAX_BYTES + b'"', "large", ""),
    ],
)
def test_other_bodies_are_shown_for_what_they_are(raw: bytes | None, kind: str, part: str) -> None:
    body = body_of(raw, HIDING)
    assert (body.kind, body.size) == (kind, len(raw or b""))
    assert part in body.text
    assert "hunter2" not in body.text


PYTHON = """Traceback (most recent call last):
  File "/app/.venv/lib/python3.12/site-packages/httpx/_client.py", line 10, in send
    response = self._send()
               ^^^^^^^^^^^^
  File "/usr/lib/python3.12/ssl.py", line 3, in read
    return self._sslobj.read()
  File "/app/shop/jobs.py", line 7, in charge
    bank.charge(card)
  File "/app/.venv/lib/python3.12/site-packages/bank/api.py", line 1, in charge
    raise TimeoutError
TimeoutError: bank API did not answer
"""
NODE = """Error: no
    at charge (/app/src/jobs.mjs:7:9)
    at run (/app/node_modules/pool/index.js:1:2)
    at node:internal/process/task_queues:95:5"""


def test_frames_of_libraries_are_folded_and_nothing_is_lost() -> None:
    parts = folded(PYTHON)
    assert [part.frames for part in parts] == [0, 2, 0, 1, 0]
    assert "shop/jobs.py" in parts[2].text
    assert parts[-1].text.startswith("TimeoutError")
    assert "\n".join(part.text for part in parts) == PYTHON.rstrip()
    assert [part.frames for part in folded(NODE)] == [0, 2]
    assert folded("") == []


def test_a_traceback_of_libraries_alone_is_shown_whole() -> None:
    only = "\n".join(line for line in PYTHON.splitlines() if "shop" not in line and "card" not in line)
    assert [part.frames for part in folded(only)] == [0]
    assert [part.frames for part in folded("no traceback at all")] == [0]


def test_commands_are_quoted_for_a_shell() -> None:
    made = commands.list_jobs("http://h:1", """error:"it's" tag:$(id)""", oldest=True)
    words = shlex.split(made.headgate)
    assert words == ["headgate", "job", "list", "--filter", """error:"it's" tag:$(id)""", "--oldest"]
    assert (
        shlex.split(made.curl)[-1]
        == "http://h:1/v1/jobs?filter=error%3A%22it%27s%22%20tag%3A%24%28id%29&oldest_first=true"
    )
    submit = commands.submit_job("http://h:1", "mail", {"to": "o'hara"})
    assert shlex.split(submit.headgate) == ["headgate", "submit", "mail", '{"to": "o\'hara"}']
    assert json.loads(shlex.split(submit.curl)[-1]) == {"topic": "mail", "payload": {"to": "o'hara"}}
