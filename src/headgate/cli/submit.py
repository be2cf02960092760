"""`headgate submit TOPIC [PAYLOAD]`: one job from the command line."""

from __future__ import annotations

import asyncio
import json

from headgate.cli import values
from headgate.sdk import Headgate, JobOptions


def submit_command(
    topic: str,
    payload: str = "",
    *,
    priority: str = "0",
    delay: str = "",
    at: str = "",
    max_attempts: int = 0,
    key: str = "",
    tags: str = "",
    limit_key: str = "",
    wait: str = "",
    url: str = "",
) -> None:
    """Submit one job and print its id.

    Parameters
    ----------
    topic
        Where it goes.
    payload
        JSON, `@file`, or `-` for standard input.
    priority
        A number, or a tier: bulk, normal, high, urgent.
    delay
        How long to wait before it is due: 30s, 5m, 2h, 1d.
    at
        When it is due: 2026-12-24T18:00:00Z.
    max_attempts
        How often it may be tried; the topic's default when left out.
    key
        Idempotency key: the same key is the same job.
    tags
        Words to find it by, separated by commas.
    limit_key
        By what the topic limits, orders or shares: a customer, an account.
    wait
        Wait this long for its result, and print that.
    url
        The server; HEADGATE_URL or 127.0.0.1:7070 when left out.
    """
    options: JobOptions = {}
    options["priority"] = int(priority) if priority.lstrip("+-").isdigit() else priority
    if delay:
        options["delay"] = values.span(delay, field="--delay")
    if at:
        options["run_at"] = values.moment(at, field="--at")
    if max_attempts:
        options["max_attempts"] = max_attempts
    if key:
        options["key"] = key
    if tags:
        options["tags"] = [tag.strip() for tag in tags.split(",")]
    if limit_key:
        options["limit_key"] = limit_key
    patience = values.span(wait, field="--wait").total_seconds() if wait else 0.0
    asyncio.run(_submit(url or None, topic, values.payload(payload), options, patience))


async def _submit(url: str | None, topic: str, payload: bytes, options: JobOptions, patience: float) -> None:
    async with Headgate(url) as hg:
        handle = await hg.submit(topic, payload, **options)
        print(handle.id, flush=True)
        if patience:
            print(json.dumps(await handle.result(patience), ensure_ascii=False))
