"""`headgate submit TOPIC [PAYLOAD]`: one job from the command line."""

from __future__ import annotations

import asyncio
import json
from typing import Literal

from headgate.cli import values
from headgate.domain.errors import InvalidInput
from headgate.sdk import Headgate, JobOptions, Unique


def submit_command(
    topic: str,
    payload: str = "",
    *,
    raw: bool = False,
    priority: str = "0",
    delay: str | None = None,
    at: str | None = None,
    deadline: str | None = None,
    max_attempts: int | None = None,
    key: str | None = None,
    key_window: str | None = None,
    unique: str | None = None,
    on_conflict: Literal["keep", "replace", "reschedule"] = "keep",
    debounce_max: str | None = None,
    depends_on: str | None = None,
    needs: Literal["succeeded", "ended"] = "succeeded",
    on_parent_failure: Literal["cancel", "ignore", "block"] = "cancel",
    batch: str | None = None,
    tags: str | None = None,
    limit_key: str | None = None,
    wait: str | None = None,
    url: str = "",
) -> None:
    """Submit one job and print its id.

    Parameters
    ----------
    topic
        Where it goes.
    payload
        JSON, `@file`, or `-` for standard input.
    raw
        Send the payload's bytes as they are, JSON or not.
    priority
        A number, or a tier: bulk, normal, high, urgent.
    delay
        How long to wait before it is due: 30s, 5m, 2h, 1d.
    at
        When it is due: 2026-12-24T18:00:00Z.
    deadline
        After which it is not started any more, and stopped: a span from now (30s, 5m, 2h, 1d) or a time as of --at.
    max_attempts
        How often it may be tried; the topic's default when left out.
    key
        Idempotency key: the same key of a topic is the same job.
    key_window
        How long the key keeps a second job away; 24h when left out.
    unique
        Unique key: at most one live job of the topic has it.
    on_conflict
        With a unique key that a live job has: keep that job, replace what it is to do, or reschedule it.
    debounce_max
        The longest that repeated submits may put a job off.
    depends_on
        Ids of jobs to wait for, separated by commas.
    needs
        What of them: that they succeeded, or that they ended.
    on_parent_failure
        If one of them fails: cancel this job, ignore that, or block until it was redriven and succeeds.
    batch
        Id of the open batch it is part of.
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
    options["priority"] = values.priority(priority)
    if delay is not None:
        options["delay"] = values.span(delay, field="--delay")
    if at is not None:
        options["run_at"] = values.moment(at, field="--at")
    if deadline is not None:
        options["deadline"] = values.span_or_moment(deadline, field="--deadline")
    if max_attempts is not None:
        options["max_attempts"] = max_attempts
    if key is not None:
        options["key"] = key
    if key_window is not None:
        options["key_window"] = values.span(key_window, field="--key-window")
    if unique is not None:
        longest = None if debounce_max is None else values.span(debounce_max, field="--debounce-max")
        options["unique"] = Unique(key=unique, on_conflict=on_conflict, debounce_max=longest)
    elif on_conflict != "keep" or debounce_max is not None:
        raise InvalidInput("--unique", "is missing, so --on-conflict and --debounce-max have nothing to apply to")
    if depends_on is not None:
        options["depends_on"] = [one.strip() for one in depends_on.split(",")]
        options["needs"], options["on_parent_failure"] = needs, on_parent_failure
    if batch is not None:
        options["batch"] = batch
    if tags is not None:
        options["tags"] = [tag.strip() for tag in tags.split(",")]
    if limit_key is not None:
        options["limit_key"] = limit_key
    patience = 0.0 if wait is None else values.span(wait, field="--wait").total_seconds()
    asyncio.run(_submit(url or None, topic, values.payload(payload, raw=raw), options, patience))


async def _submit(url: str | None, topic: str, payload: bytes, options: JobOptions, patience: float) -> None:
    async with Headgate(url) as hg:
        handle = await hg.submit(topic, payload, **options)
        print(handle.id, flush=True)
        if patience:
            print(json.dumps(await handle.result(patience), ensure_ascii=False))
