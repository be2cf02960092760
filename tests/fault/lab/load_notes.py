"""How the load notes what it asks for: targets, options, changes and settings as plain values."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from headgate import Headgate
from headgate.domain.dependencies import Unique
from headgate.domain.topic_limits import Rate
from headgate.sdk import (
    NotFound,
)
from headgate.sdk.admin.topics import TopicSettings

Target = dict[str, Any]


async def resume_target(hg: Headgate, target: Target) -> str:
    try:
        await hg.admin.resume(**target)
    except NotFound:
        return "not found"
    return "resumed"


def noted_target(target: Target) -> dict[str, object]:
    """For the history, in which `tenant` is who has asked: what names no topic and not everything is the tenant."""
    return {name: value for name, value in target.items() if name != "tenant"}


def noted_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a submit for the history."""
    told: dict[str, Any] = {name: str(value) for name, value in options.items() if name != "run_at"}
    if isinstance(unique := options.get("unique"), Unique):
        told["unique"], told["on_conflict"] = unique.key, unique.on_conflict
    if "depends_on" in options:
        told["depends_on"] = [job.hex for job in options["depends_on"]]
    return told


def noted_change(changes: Sequence[Any]) -> Mapping[str, object]:
    return {"changed": changes[0].changed, "state": changes[0].state, "code": changes[0].code}


def plain_settings(settings: TopicSettings) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in settings.items():
        if isinstance(value, Rate):
            found[name] = [value.count, value.period // timedelta(milliseconds=1), value.burst or value.count]
        elif isinstance(value, int | bool):
            found[name] = value
    return found


def body_no(body: bytes) -> int:
    return int(json.loads(body)["b"])


def random_id(chance: random.Random) -> UUID:
    # As the SDK makes them, from the load's own chance: version 7, its time left out.
    return UUID(
        int=(0x0199 << 112) | (0x7 << 76) | (0b10 << 62) | chance.getrandbits(60) | (chance.getrandbits(12) << 64)
    )
