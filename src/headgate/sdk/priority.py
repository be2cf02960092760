"""Named tiers of priority: names for people, numbers on the wire."""

from __future__ import annotations

from enum import IntEnum


class Priority(IntEnum):
    """Ten apart, so that there is room between two. Any other int is a priority too; higher runs first."""

    BULK = -10
    NORMAL = 0
    HIGH = 10
    URGENT = 20
