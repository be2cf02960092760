"""`headgate topic …`: settings and limits of topics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

from headgate.cli import values
from headgate.cli.connection import with_client
from headgate.cli.errors import print_warning
from headgate.cli.options import DEFAULT_SERVER, Output, Reason, Server
from headgate.cli.output import Columns, days, details, print_list, print_one, table
from headgate.cli.unhandled import unhandled_lines
from headgate.domain.backoff import BackoffKind, RetryPolicy
from headgate.domain.errors import InvalidInput
from headgate.domain.retention import KEEP_RULES, check_keep
from headgate.domain.topic_limits import Rate
from headgate.domain.validation import shown
from headgate.sdk import Headgate
from headgate.sdk.admin import Status
from headgate.sdk.admin.topics import Declaration, TopicInfo, TopicSettings
from headgate.sdk.options import priority_of

STATES: Final = ("pending", "running", "scheduled", "retrying", "blocked", "completed", "dead", "cancelled")
topic = App(name="topic", help="Show and change settings and limits of topics.")
Keep = Annotated[
    str,
    Parameter(
        help="Retention of jobs that ended in this state: 7d. none: the rule of all topics (headgate retention)."
    ),
]


COLUMNS: Final[Columns[TopicInfo]] = {
    "TOPIC": lambda one: one.name,
    **{state.upper(): lambda one, state=state: one.counts.get(state, 0) for state in STATES},  # type: ignore[misc]
    "LIMITS": lambda one: limits_of(one),
}


@topic.command(name="list")
def list_command(*, output: Output = "table", server: Server = DEFAULT_SERVER) -> None:
    """List topics with their limits and the number of jobs by state."""

    async def act(hg: Headgate) -> tuple[list[TopicInfo], Status]:
        return await hg.admin.topics.list(), await hg.admin.status()

    found, status = with_client(server, act)
    print_list(found, output, COLUMNS, name=lambda one: one.name, empty="no topics", fields=_fields)
    for line in unhandled_lines(status) if output == "table" else ():
        print_warning(line)


@topic.command(name="get")
def get_command(
    name: Annotated[str, Parameter(help="Topic.")], *, output: Output = "table", server: Server = DEFAULT_SERVER
) -> None:
    """Show one topic: value and origin of each setting, current use of its limits, number of jobs by state."""
    _report(with_client(server, lambda hg: hg.admin.topics.get(name)), output)


@topic.command(name="set")
def set_command(
    name: Annotated[str, Parameter(help="Topic; created if it does not exist.")],
    *,
    max_running: Annotated[str, Parameter(help="Maximum jobs running at once.")] = "",
    rate: Annotated[str, Parameter(help="Maximum starts per period: 100/1s, or 100/1s:20 with a burst of 20.")] = "",
    max_running_per_key: Annotated[str, Parameter(help="Maximum jobs of one limit key running at once.")] = "",
    key_rate: Annotated[str, Parameter(help="Maximum starts per period of one limit key, as --rate.")] = "",
    ordered_by_key: Annotated[
        str, Parameter(help="yes: a job of a key starts after the previous job of that key has ended.")
    ] = "",
    fair_by_key: Annotated[str, Parameter(help="yes: dispatch keys in turn, however many jobs each has.")] = "",
    max_backlog: Annotated[str, Parameter(help="Maximum waiting jobs; further submits are refused.")] = "",
    max_attempts: Annotated[str, Parameter(help="Maximum attempts of jobs submitted from now on.")] = "",
    retry: Annotated[
        str,
        Parameter(
            help="Retry policy: fixed:30s, linear:5s, quadratic:1s, exponential:1s, exponential_full_jitter:1s:10m "
            "(base and cap)."
        ),
    ] = "",
    priority: Annotated[str, Parameter(help="Priority of jobs submitted without one: a number, or a tier.")] = "",
    time_limit: Annotated[
        str, Parameter(help="Maximum duration of one attempt: 30s. none: no limit, whatever the handler declares.")
    ] = "",
    ageing_step: Annotated[
        str, Parameter(help="Waiting time that is worth one unit of priority: 30s. none: strict priority.")
    ] = "",
    keep_completed: Keep = "",
    keep_dead: Keep = "",
    keep_cancelled: Keep = "",
    reason: Reason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Change settings of a topic. Settings not given stay unchanged; `none` removes a limit.

    What is set here counts until it is released (`headgate topic release`), whatever the handler of the topic declares.
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
                None
                if text == "none"
                else check_keep(values.duration(text, field=_option(field)), field=_option(field))
            )
    if priority:
        given["priority"] = 0 if priority == "none" else priority_of(values.priority(priority))
    if time_limit:
        none = timedelta(0)  # and not "no rule", which would be what the handler declares
        given["time_limit"] = none if time_limit == "none" else values.duration(time_limit, field="--time-limit")
    if ageing_step:
        given["ageing_step"] = None if ageing_step == "none" else values.duration(ageing_step, field="--ageing-step")
    if retry:
        given["retry"] = None if retry == "none" else policy_of(retry)
    if not given:
        raise InvalidInput(
            "topic set", "has nothing to change", hint="pass at least one setting, such as --max-running 10"
        )
    settings = TopicSettings(**given)  # type: ignore[typeddict-item]  # built by name above
    _report(with_client(server, lambda hg: hg.admin.topics.set(name, reason=reason, **settings)), output)


@topic.command(name="release")
def release_command(
    name: Annotated[str, Parameter(help="Topic.")],
    *settings: Annotated[str, Parameter(help="Settings to release, such as `max-attempts retry`. Default: all.")],
    reason: Reason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Release settings that were changed with `topic set`: what the handler declares counts again, or the default."""
    names = [one.removeprefix("--").replace("-", "_") for one in settings]
    _report(with_client(server, lambda hg: hg.admin.topics.release(name, *names, reason=reason)), output)


def rate_of(text: str, *, field: str) -> Rate:
    """Parse `100/1s`, or `100/1s:20` with a burst of 20."""
    found = re.fullmatch(r"([0-9]{1,18})/([^:]+)(?::([0-9]{1,18}))?", text)
    if found is None:
        raise InvalidInput(
            field, f"is not a rate, got {shown(text)}", hint="use 100/1s, or 100/1s:20 with a burst of 20"
        )
    return Rate(
        count=int(found[1]), period=values.duration(found[2], field=field), burst=int(found[3]) if found[3] else None
    )


def policy_of(text: str) -> RetryPolicy:
    """Parse `kind:base`, or `kind:base:cap`."""
    kind, *spans = text.split(":")
    kinds = {one.name.lower(): one for one in BackoffKind if one is not BackoffKind.EXPLICIT}
    if kind not in kinds or not 1 <= len(spans) <= 2:
        raise InvalidInput(
            "--retry",
            f"is not a retry policy, got {shown(text)}",
            hint=f"use KIND:BASE[:CAP] with KIND one of {', '.join(kinds)}",
        )
    base, *cap = (values.duration(one, field="--retry") // timedelta(milliseconds=1) for one in spans)
    default = RetryPolicy()
    return RetryPolicy(kind=kinds[kind], base_ms=base, cap_ms=cap[0] if cap else max(base, default.cap_ms))


def limits_of(info: TopicInfo) -> str:
    """Return the limits as text."""
    parts = [
        f"{name} {value}"
        for name, value in (
            ("max running", info.max_running),
            ("max running per key", info.max_running_per_key),
            ("max backlog", info.max_backlog),
        )
        if value is not None
    ]
    parts += [f"{name} {_rate(rate)}" for name, rate in (("rate", info.rate), ("rate per key", info.key_rate)) if rate]
    parts += [name for name, on in (("ordered by key", info.ordered_by_key), ("fair by key", info.fair_by_key)) if on]
    return ", ".join(parts)


def _report(info: TopicInfo, output: str) -> None:
    print_one(_fields(info), output, lambda: _lines(info), name=info.name)


def _lines(info: TopicInfo) -> Iterator[str]:
    columns: Columns[str] = {
        "SETTING": lambda name: name.replace("_", "-"),
        "VALUE": lambda name: value_text(name, getattr(info, name)),
        "ORIGIN": lambda name: _origin_text(info, name),
    }
    yield info.name
    yield from (f"  {line}" for line in table(TopicSettings.__annotations__, columns))
    yield from details("", _details(info))[1:]


def _details(info: TopicInfo) -> Iterator[tuple[str, object]]:
    if info.conflict is not None:
        other = f"{info.conflict.source} (worker {info.conflict.worker})"
        yield "conflict", f"{other} declares {_declared_text(info.conflict)}; the newest declaration counts"
    if info.running is not None:
        tokens = "" if info.tokens is None else f", {info.tokens:.1f} can start now"
        yield "in use", f"{info.running} running{tokens}"
    for state, count in sorted(info.counts.items()):
        yield state, f"{count:,}"


def value_text(name: str, value: object) -> str:
    """Return the value of a setting as text, as `topic set` accepts it."""
    match value:
        case RetryPolicy():
            spans = value.delays_ms or (value.base_ms, value.cap_ms)
            spans = spans[:1] if value.kind is BackoffKind.FIXED else spans
            return f"{value.kind.name.lower()}:{':'.join(f'{ms / 1000:g}s' for ms in spans)}"
        case Rate():
            burst = "" if value.burst is None else f":{value.burst}"
            return f"{value.count}/{value.period.total_seconds():g}s{burst}"
        case timedelta():
            if name in KEEP_RULES:
                return days(value)
            return f"{value.total_seconds():g}s" if value else "none"
        case bool():
            return "yes" if value else "no"
        case None:
            return "none"
        case _:
            return str(value)


def _origin_text(info: TopicInfo, name: str) -> str:
    origin = info.origins[name]
    declared = {} if info.declared is None else info.declared.settings
    if origin.origin == "operator" and info.declared is not None and name in declared:
        return f"{origin} ({info.declared.source} declares {value_text(name, declared[name])})"
    return str(origin)


def _declared_text(one: Declaration) -> str:
    values = [f"{name.replace('_', '-')} {value_text(name, value)}" for name, value in one.settings.items()]
    return ", ".join(values) or "nothing"


def _fields(info: TopicInfo) -> dict[str, object]:
    return asdict(info) | {"retry": asdict(info.retry) | {"kind": info.retry.kind.name.lower()}}


def _rate(rate: Rate) -> str:
    burst = "" if rate.burst is None else f", burst {rate.burst}"
    return f"{rate.count} in {rate.period.total_seconds():g}s{burst}"


def _number(text: str, field: str) -> int:
    found = values.number(text)
    if found is None:
        raise InvalidInput(_option(field), f"is not a whole number, got {shown(text)}", hint="none removes the limit")
    return found


def _yes(text: str, field: str) -> bool:
    if text not in ("yes", "no"):
        raise InvalidInput(_option(field), f"must be yes or no, got {shown(text)}")
    return text == "yes"


def _option(field: str) -> str:
    return "--" + field.replace("_", "-")
