"""`headgate topic …`: settings and limits of topics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

from headgate.cli import values
from headgate.cli.connection import with_client
from headgate.cli.errors import print_warning
from headgate.cli.lists import NameFilter, show_list
from headgate.cli.options import DEFAULT_SERVER, SHOWN, Limit, Output, Reason, Server, Shown
from headgate.cli.output import Columns, details, exact, for_people, print_one, table
from headgate.cli.topic_jobs import add_jobs
from headgate.cli.topic_policies import add_policies
from headgate.cli.unhandled import unhandled_lines
from headgate.domain.errors import InvalidInput
from headgate.domain.filters import Field
from headgate.domain.topic_limits import Rate
from headgate.domain.topic_values import setting_of, value_text
from headgate.sdk import Headgate
from headgate.sdk.admin.topics import Declaration, TopicInfo, TopicSettings

STATES: Final = ("pending", "running", "scheduled", "retrying", "blocked", "completed", "dead", "cancelled")
topic = App(name="topic", help="Show and change settings and limits of topics.")
add_policies(topic)
add_jobs(topic)
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
# With -o wide.
MORE: Final[Columns[TopicInfo]] = {
    "PRIORITY": lambda one: one.priority,
    "ATTEMPTS": lambda one: one.max_attempts,
    "VERSION": lambda one: one.version,
}


@topic.command(name="list")
def list_command(
    *,
    filter: Annotated[str, Parameter(help="Only these topics: `topic:mail*`.")] = "",  # noqa: A002 - the option's name
    limit: Limit = 1_000,
    shown: Shown = SHOWN,
) -> None:
    """List topics with their limits and the number of jobs by state."""
    chosen = NameFilter(filter, Field.TOPIC)
    unhandled: list[str] = []

    async def read(hg: Headgate) -> list[TopicInfo]:
        found = [one for one in await hg.admin.topics.list() if chosen.matches({Field.TOPIC: (one.name,)})]
        if for_people(shown.output):
            unhandled[:] = unhandled_lines(await hg.admin.status())
        return found[:limit]

    show_list(shown, read, COLUMNS, name=lambda one: one.name, empty="no topics", fields=_fields, more=MORE)
    for line in unhandled:
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
    lease: Annotated[str, Parameter(help="Lease of claims that ask for none: 30s. none: the server's.")] = "",
    payload_schema: Annotated[
        str, Parameter(help="JSON Schema that payloads must match: JSON, or `@file`. none: no check.")
    ] = "",
    dead_letter_topic: Annotated[str, Parameter(help="Topic to which jobs that die are also submitted.")] = "",
    max_consumers: Annotated[
        str, Parameter(help="Maximum worker sessions that receive jobs at once; others wait as stand-by.")
    ] = "",
    max_payload_bytes: Annotated[str, Parameter(help="Largest payload of a job: 64KiB.")] = "",
    reason: Reason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Change settings of a topic. Settings not given stay unchanged; `none` removes a limit.

    What is set here counts until it is released (`headgate topic release`), whatever the handler of the topic declares.
    """
    texts = {
        "max_running": max_running,
        "max_running_per_key": max_running_per_key,
        "max_backlog": max_backlog,
        "max_attempts": max_attempts,
        "rate": rate,
        "key_rate": key_rate,
        "ordered_by_key": ordered_by_key,
        "fair_by_key": fair_by_key,
        "keep_completed": keep_completed,
        "keep_dead": keep_dead,
        "keep_cancelled": keep_cancelled,
        "priority": priority,
        "time_limit": time_limit,
        "ageing_step": ageing_step,
        "retry": retry,
        "lease": lease,
        "payload_schema": _schema_text(payload_schema),
        "dead_letter_topic": dead_letter_topic,
        "max_consumers": max_consumers,
        "max_payload_bytes": max_payload_bytes,
    }
    given: dict[str, Any] = {
        field: setting_of(field, text, field=_option(field)) for field, text in texts.items() if text
    }
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
    yield "version", info.version
    if info.consumers is not None:
        yield "consumers", f"{info.consumers} of {info.max_consumers}, {info.standby} as stand-by"
    if info.running is not None:
        tokens = "" if info.tokens is None else f", {info.tokens:.1f} can start now"
        yield "in use", f"{info.running} running{tokens}"
    for state, count in sorted(info.counts.items()):
        yield state, f"{count:,}"


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
    return asdict(info) | {
        "retry": asdict(info.retry) | {"kind": info.retry.kind.name.lower()},
        "payload_schema": None if info.payload_schema is None else json.loads(info.payload_schema),
    }


def _rate(rate: Rate) -> str:
    burst = "" if rate.burst is None else f", burst {rate.burst}"
    return f"{rate.count} in {exact(rate.period)}{burst}"


def _schema_text(text: str) -> str:
    return values.payload(text, field="--payload-schema").decode() if text.startswith("@") else text


def _option(field: str) -> str:
    return "--" + field.replace("_", "-")
