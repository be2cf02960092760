"""`headgate topic …`: rules and limits of topics."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from cyclopts import App

from headgate.cli import values
from headgate.cli.options import Output, Url
from headgate.cli.retention import days
from headgate.domain.backoff import BackoffKind, RetryPolicy
from headgate.domain.errors import InvalidInput
from headgate.domain.retention import check_keep
from headgate.domain.topic_limits import Rate
from headgate.domain.validation import shown
from headgate.sdk import Headgate
from headgate.sdk.admin.topics import TopicInfo, TopicSettings

topic = App(name="topic", help="Rules and limits of topics.")


@topic.command(name="list")
def list_command(*, output: Output = "text", url: Url = "") -> None:
    """List topics with their limits and how many jobs wait and run."""

    async def run() -> list[TopicInfo]:
        async with Headgate(url or None) as hg:
            return await hg.admin.topics.list()

    found = asyncio.run(run())
    if output == "json":
        print(json.dumps([_plain(info) for info in found], ensure_ascii=False))
        return
    for info in found:
        counts = "  ".join(f"{state} {count}" for state, count in sorted(info.counts.items()))
        print(f"{info.name}  {counts or 'no jobs'}" + (f"   [{limits_of(info)}]" if limits_of(info) else ""))


@topic.command(name="get")
def get_command(name: str, *, output: Output = "text", url: Url = "") -> None:
    """Show one topic: rules, limits, what they count now, jobs by state.

    Parameters
    ----------
    name
        The topic.
    """

    async def run() -> TopicInfo:
        async with Headgate(url or None) as hg:
            return await hg.admin.topics.get(name)

    _report(asyncio.run(run()), output)


@topic.command(name="set")
def set_command(
    name: str,
    *,
    max_running: str = "",
    rate: str = "",
    max_running_per_key: str = "",
    key_rate: str = "",
    ordered_by_key: str = "",
    fair_by_key: str = "",
    max_backlog: str = "",
    max_attempts: str = "",
    retry: str = "",
    ageing_step: str = "",
    keep_completed: str = "",
    keep_dead: str = "",
    keep_cancelled: str = "",
    reason: str = "",
    output: Output = "text",
    url: Url = "",
) -> None:
    """Change a topic; what is left out stays. `none` takes a limit away.

    Parameters
    ----------
    name
        The topic; made if it does not exist.
    max_running
        How many of its jobs may run at once.
    rate
        How many may start: 100/1s, or 100/1s:20 with at most 20 at once.
    max_running_per_key
        How many of one limit key may run at once.
    key_rate
        How many of one limit key may start, as --rate.
    ordered_by_key
        yes: the next of a key starts when the one before has ended for good.
    fair_by_key
        yes: keys take turns, however many jobs each has.
    max_backlog
        How many jobs may wait; more are refused.
    max_attempts
        For jobs submitted from now on.
    retry
        fixed:30s, linear:5s, quadratic:1s, exponential:1s, exponential_full_jitter:1s:10m (base and cap).
    ageing_step
        How much waiting is worth one unit of priority: 30s. none: strict priority.
    keep_completed, keep_dead, keep_cancelled
        How long finished jobs are kept, by how they ended: 7d, or none for the rule of all topics (headgate retention).
    reason
        Why, for the audit.
    """
    given: dict[str, Any] = {}
    for field, text in (
        ("max_running", max_running),
        ("max_running_per_key", max_running_per_key),
        ("max_backlog", max_backlog),
        ("max_attempts", max_attempts),
    ):
        if text:
            given[field] = None if text == "none" else _number(text, field)
    for field, text in (("rate", rate), ("key_rate", key_rate)):
        if text:
            given[field] = None if text == "none" else rate_of(text, field=_option(field))
    for field, text in (("ordered_by_key", ordered_by_key), ("fair_by_key", fair_by_key)):
        if text:
            given[field] = _yes(text, field)
    for field, text in (
        ("keep_completed", keep_completed),
        ("keep_dead", keep_dead),
        ("keep_cancelled", keep_cancelled),
    ):
        if text:
            given[field] = (
                None if text == "none" else check_keep(values.span(text, field=_option(field)), field=_option(field))
            )
    if ageing_step:
        given["ageing_step"] = None if ageing_step == "none" else values.span(ageing_step, field="--ageing-step")
    if retry:
        given["retry"] = None if retry == "none" else policy_of(retry)
    if not given:
        raise InvalidInput("topic set", "nothing to change is given", hint="for example --max-running 10")
    settings = TopicSettings(**given)  # type: ignore[typeddict-item]  # put together by name above

    async def run() -> TopicInfo:
        async with Headgate(url or None) as hg:
            return await hg.admin.topics.set(name, reason=reason, **settings)

    _report(asyncio.run(run()), output)


def rate_of(text: str, *, field: str) -> Rate:
    """`100/1s`, or `100/1s:20` with a burst of 20."""
    found = re.fullmatch(r"([0-9]{1,18})/([^:]+)(?::([0-9]{1,18}))?", text)
    if found is None:
        raise InvalidInput(
            field, f"is not a rate, got {shown(text)}", hint="write 100/1s, or 100/1s:20 with a burst of 20"
        )
    return Rate(
        count=int(found[1]), period=values.span(found[2], field=field), burst=int(found[3]) if found[3] else None
    )


def policy_of(text: str) -> RetryPolicy:
    """`kind:base`, or `kind:base:cap`."""
    kind, *spans = text.split(":")
    kinds = {one.name.lower(): one for one in BackoffKind if one is not BackoffKind.EXPLICIT}
    if kind not in kinds or not 1 <= len(spans) <= 2:
        raise InvalidInput(
            "--retry", f"is not a policy, got {shown(text)}", hint=f"write KIND:BASE[:CAP], of {', '.join(kinds)}"
        )
    base, *cap = (values.span(one, field="--retry") // timedelta(milliseconds=1) for one in spans)
    default = RetryPolicy()
    return RetryPolicy(kind=kinds[kind], base_ms=base, cap_ms=cap[0] if cap else max(base, default.cap_ms))


def limits_of(info: TopicInfo) -> str:
    """The limits in a few words."""
    words = [
        f"{name} {value}"
        for name, value in (
            ("max running", info.max_running),
            ("max running per key", info.max_running_per_key),
            ("max backlog", info.max_backlog),
        )
        if value is not None
    ]
    words += [f"{name} {_rate(rate)}" for name, rate in (("rate", info.rate), ("rate per key", info.key_rate)) if rate]
    words += [name for name, on in (("ordered by key", info.ordered_by_key), ("fair by key", info.fair_by_key)) if on]
    return ", ".join(words)


def _report(info: TopicInfo, output: str) -> None:
    if output == "json":
        print(json.dumps(_plain(info), ensure_ascii=False))
        return
    policy = info.retry
    print(info.name)
    print(f"  limits    {limits_of(info) or 'none'}")
    if info.running is not None:
        tokens = "" if info.tokens is None else f", {info.tokens:.1f} may start now"
        print(f"  in use    {info.running} running{tokens}")
    print(f"  rules     max attempts {info.max_attempts}, {policy.kind.name.lower()} retry from {policy.base_ms} ms")
    print(f"  priority  {'strict' if info.ageing_step is None else f'one unit for each {info.ageing_step} of waiting'}")
    kept = [
        f"{state} {days(span)}"
        for state, span in (
            ("completed", info.keep_completed),
            ("dead", info.keep_dead),
            ("cancelled", info.keep_cancelled),
        )
        if span is not None
    ]
    print(f"  kept      {', '.join(kept) or 'as all topics'}")
    for state, count in sorted(info.counts.items()):
        print(f"  {state:9} {count}")


def _plain(info: TopicInfo) -> dict[str, object]:
    words: dict[str, object] = asdict(info)
    for name, value in words.items():
        if isinstance(value, datetime):
            words[name] = value.isoformat()
        elif isinstance(value, timedelta):
            words[name] = value.total_seconds()
    for name, rate in (("rate", info.rate), ("key_rate", info.key_rate)):
        if rate is not None:
            words[name] = {"count": rate.count, "period": rate.period.total_seconds(), "burst": rate.burst}
    words["retry"] = {**asdict(info.retry), "kind": info.retry.kind.name.lower()}
    return words


def _rate(rate: Rate) -> str:
    burst = "" if rate.burst is None else f", burst {rate.burst}"
    return f"{rate.count} in {rate.period.total_seconds():g}s{burst}"


def _number(text: str, field: str) -> int:
    found = values.number(text)
    if found is None:
        raise InvalidInput(_option(field), f"is not a whole number, got {shown(text)}", hint="or none, to take it away")
    return found


def _yes(text: str, field: str) -> bool:
    if text not in ("yes", "no"):
        raise InvalidInput(_option(field), f"must be yes or no, got {shown(text)}")
    return text == "yes"


def _option(field: str) -> str:
    return "--" + field.replace("_", "-")
