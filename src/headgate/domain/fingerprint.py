"""Which errors are the same: what differs from job to job (numbers, ids, names in quotes, paths) is left out.

Pure text to text, computed when dead letters are read: nothing is stored, so a better rule needs no migration.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from headgate.domain.filters import GROUP_CHARS

LOOKED_AT_CHARS: Final = 500
TITLE_CHARS: Final = 200

# In this order: a quoted path is a quoted text, a UUID is not eight hex digits and a few numbers.
_RULES: Final = (
    (re.compile(r"encrypted:[A-Za-z0-9_-]+"), "<encrypted>"),
    # An apostrophe within a word (can't) opens nothing.
    (re.compile(r"(?<!\w)'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|`[^`\n]*`"), "'…'"),
    (re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s,;)\]}>]+", re.IGNORECASE), "<url>"),
    # Bounded: "a.a.a." without an @ would be read to its end from each of its letters.
    (re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64})+\b"), "<mail>"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "<hex>"),
    # Letters and digits mixed, eight and more: a hash. Digits alone are a number, letters alone a word (`deadbeef`).
    (re.compile(r"\b(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{8,}\b", re.IGNORECASE), "<hex>"),
    (re.compile(r"(?<![\w<])(?:[A-Za-z]:)?(?:[/\\][\w.+@-]+){2,}[/\\]?"), "<path>"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "#"),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorGroup:
    """What errors of one kind have in common: `id` for filters (`error_group:`), `title` for people."""

    id: str
    title: str


def group_of(error: str | None) -> ErrorGroup:
    """The group of an error as a job keeps it (`Type: message`). The same text always has the same group."""
    title = (error or "").strip()[:LOOKED_AT_CHARS].partition("\n")[0]
    for pattern, instead in _RULES:
        title = pattern.sub(instead, title)
    # Cut after the normalising, or two lengths of one name would make two groups.
    title = title.strip()[:TITLE_CHARS]
    return ErrorGroup(id=sha256(title.encode(errors="replace")).hexdigest()[:GROUP_CHARS], title=title)
