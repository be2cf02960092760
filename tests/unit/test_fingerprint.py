"""Which errors count as one kind."""

from __future__ import annotations

import pytest

from headgate.domain.filters import GROUP_CHARS
from headgate.domain.fingerprint import group_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("TimeoutError: no answer in 15 s", "TimeoutError: no answer in 3.5 s"),
        ("KeyError: 'a'", "KeyError: 'b'"),
        ('ValueError: "x y" is no number', 'ValueError: "" is no number'),
        ("Gone: job 0190a3b2-7c4d-7abc-8def-0123456789ab", "Gone: job 0190a3b2-7c4d-7abc-8def-ffffffffffff"),
        ("OSError: /tmp/a/b.txt: no space", "OSError: /var/lib/x.dat: no space"),
        ("Bad: object at 0x7f00aa", "Bad: object at 0x1"),
        ("Http: GET https://a.example/x?y=1 gave 500", "Http: GET https://b.example/ gave 502"),
        ("Bounced: ana@example.com", "Bounced: b.c@mail.example.org"),
        ("Bad: commit a1b2c3d4e5 unknown", "Bad: commit 0f0f0f0f0f0f unknown"),
        ("Deep: first line\nsecond a", "Deep: first line\nsecond b"),
        ("Space:  two   words", "Space: two words"),
        ("Gone: order 12345678", "Gone: order 7"),
        (f"Bad: '{'a' * 150}' is too long", f"Bad: '{'a' * 220}' is too long"),
    ],
)
def test_what_differs_from_job_to_job_makes_no_new_group(one: str, other: str) -> None:
    assert group_of(one) == group_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("TimeoutError: no answer", "ConnectionError: no answer"),
        ("ValueError: too large", "ValueError: too small"),
        ("E: can't open the door", "E: can't shut the door and don't ask"),
        ("E: can't open it, so don't ask", "E: can't shut it, so don't ask"),
        ("E: deadbeef", "E: cafebabe"),
        ("", "E"),
    ],
)
def test_different_errors_are_different_groups(one: str, other: str) -> None:
    assert group_of(one).id != group_of(other).id


def test_a_group_has_a_short_id_and_a_readable_title() -> None:
    group = group_of("TimeoutError: bank 'x' did not answer in 15 s")
    assert group.title == "TimeoutError: bank '…' did not answer in # s"
    assert len(group.id) == GROUP_CHARS
    assert group_of(None) == group_of("")
    assert len(group_of("word " * 5_000).title) <= 200
    assert group_of("a\ud800b").id  # whatever a worker said, its job can be shown
