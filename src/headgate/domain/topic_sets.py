"""The topics that a credential permits: names, and patterns that end with `*`. The only matcher of such patterns.

`orders.*` permits every topic that begins with `orders.` and has at least one more character: `orders.eu` and
`orders.eu.paid`, but neither `orders` nor `orders.`. A star stands at the end only. `*` alone permits all topics.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from headgate.domain import limits
from headgate.domain.errors import InvalidInput, TooLarge
from headgate.domain.validation import check_text, check_topic, shown

_STAR_RULE = "a * stands at the end only, such as orders.*"


@dataclass(frozen=True, slots=True)
class TopicSet:
    """A set of topics, given by names and patterns.

    No topic name has a star, so the text of a pattern is in the set exactly if every topic that it matches is: one
    test answers for topics and for narrower sets.
    """

    patterns: frozenset[str]
    names: frozenset[str] = field(init=False, repr=False, compare=False)
    _prefixes: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        stars = sorted(one for one in self.patterns if one.endswith("*"))
        object.__setattr__(self, "names", self.patterns.difference(stars))
        object.__setattr__(self, "_prefixes", tuple(one[:-1] for one in stars))

    @classmethod
    def of(cls, *patterns: str) -> Self:
        """The set of these names and patterns, which have been checked before."""
        return cls(frozenset(patterns))

    @classmethod
    def stored(cls, patterns: Iterable[str] | None) -> Self | None:
        """The set of a list of names and patterns that was stored; None: all topics."""
        return None if patterns is None else cls(frozenset(patterns))

    def __contains__(self, topic: object) -> bool:
        """Whether the set has this topic, or all topics of this pattern."""
        if topic in self.names:
            return True
        # Without its last character: a prefix must be followed by at least one.
        return bool(self._prefixes) and isinstance(topic, str) and topic[:-1].startswith(self._prefixes)

    def covers(self, other: TopicSet | None) -> bool:
        """Whether the set has all topics of another one; None: of the whole tenant."""
        return other is not None and all(one in self for one in other.patterns)

    @property
    def listed(self) -> list[str]:
        """The names and patterns in order: to store, to show, to send."""
        return sorted(self.patterns)

    @property
    def like(self) -> list[str]:
        """The same as patterns for LIKE ANY."""
        return [_escaped(one) if one in self.names else f"{_escaped(one[:-1])}_%" for one in self.listed]


def check_topic_patterns(values: Iterable[object], *, field: str = "topics") -> TopicSet | None:
    """Accept names of topics and patterns that end with a star; None if one of them is `*` alone: all topics."""
    found = [check_topic_pattern(one, field=field) for one in values]
    if len(found) > limits.PATTERNS_MAX:
        raise TooLarge(field, size=len(found), limit=limits.PATTERNS_MAX, unit="topics", hint="use patterns")
    return None if "*" in found else TopicSet(frozenset(found))


def check_topic_pattern(value: object, *, field: str = "topics") -> str:
    """Accept one name or pattern."""
    if value == "*":
        return "*"
    if isinstance(value, str) and "*" in value:
        text = check_text(value, field=field, high=limits.TOPIC_MAX_CHARS, hint=_STAR_RULE)
        if text.index("*") != len(text) - 1:
            raise InvalidInput(field, f"is not a pattern for topics, got {shown(text)}", hint=_STAR_RULE)
        check_topic(text[:-1], field=field)
        return text
    return check_topic(value, field=field)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
