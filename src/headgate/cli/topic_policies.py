"""`headgate topic apply|export|history`: the policy of topics as files, and its versions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from difflib import unified_diff
from typing import Annotated, Final, Literal

from cyclopts import App, Parameter

from headgate.cli.connection import with_client
from headgate.cli.lists import show_list
from headgate.cli.options import DEFAULT_SERVER, SHOWN, Limit, Output, Reason, Server, Shown
from headgate.cli.output import Columns, as_json, print_lines, print_list
from headgate.cli.policy_files import (
    InvalidPolicy,
    PolicyFile,
    as_toml,
    effective_settings,
    operator_settings,
    read_policies,
)
from headgate.domain.errors import InvalidInput, VersionConflict
from headgate.domain.topic_values import document_value, value_text
from headgate.sdk import Headgate
from headgate.sdk.admin.topics import AppliedPolicy, PolicyChange, PolicyVersion, TopicInfo

HISTORY: Final[Columns[PolicyVersion]] = {
    "VERSION": lambda one: one.version,
    "AT": lambda one: one.at,
    "ACTOR": lambda one: one.actor,
    "VERB": lambda one: one.verb,
    "CHANGES": lambda one: ", ".join(map(_short, one.changes)),
    "REASON": lambda one: one.reason,
}


def add_policies(topic: App) -> None:
    """Register the commands."""
    topic.command(apply_command, name="apply")
    topic.command(export_command, name="export")
    topic.command(history_command, name="history")


def apply_command(
    *,
    file: Annotated[
        str, Parameter(name=("--file", "-f"), help="File of policies, TOML or JSON; `-` for standard input.")
    ],
    dry_run: Annotated[bool, Parameter(help="Show what would change, and change nothing.")] = False,
    prune: Annotated[
        bool,
        Parameter(help="Also release what was set for these topics and is not in the file. Other topics stay."),
    ] = False,
    reason: Reason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Set what a file says about topics, and show the difference.

    All topics are checked first: if one is refused, nothing is changed. What is set counts until it is released.
    """
    policies = read_policies(file)

    async def act(hg: Headgate) -> list[AppliedPolicy]:
        found = [await _apply(hg, policies, at, prune=prune) for at in range(len(policies.documents))]
        if dry_run:
            return found
        return [
            await _apply(hg, policies, at, prune=prune, preview=preview, reason=reason) if preview.changes else preview
            for at, preview in enumerate(found)
        ]

    applied = with_client(server, act)
    match output:
        case "json" | "ndjson" | "yaml":
            print_list(applied, output, {}, name=lambda one: one.name, empty="", fields=_fields)
        case "name":
            print_lines(one.name for one in applied if one.changes)
        case _:
            print_lines(line for one in applied for line in _lines(one, dry_run=dry_run))


async def _apply(
    hg: Headgate,
    policies: PolicyFile,
    at: int,
    *,
    prune: bool,
    preview: AppliedPolicy | None = None,
    reason: str = "",
) -> AppliedPolicy:
    """Apply a document at the version that its preview has seen; without a preview, make one."""
    one = policies.documents[at]
    try:
        return await hg.admin.topics.apply(
            one.topic,
            prune=prune,
            version=one.version if preview is None else preview.before_version,
            dry_run=preview is None,
            reason=reason,
            **one.settings,
        )
    except InvalidInput as error:
        named = error.field.partition(".")[0]
        field = named if named in one.settings else ""
        raise InvalidPolicy(policies.where(one.topic, field), error.problem, hint=error.hint) from None
    except VersionConflict as error:
        raise VersionConflict(f"{policies.where(one.topic, 'version')}: {error}") from None


def export_command(
    *topics: Annotated[str, Parameter(help="Topics. Default: all that something was set for.")],
    effective: Annotated[bool, Parameter(help="Also write what handlers declare.")] = False,
    versions: Annotated[
        bool, Parameter(help="Write versions: applying then fails if a topic was changed in between.")
    ] = False,
    format: Annotated[Literal["toml", "json"], Parameter(help="Format of the file.")] = "toml",  # noqa: A002 - the option
    server: Server = DEFAULT_SERVER,
) -> None:
    """Print the policies of topics as a file for `headgate topic apply`: what operators have set."""

    async def act(hg: Headgate) -> list[TopicInfo]:
        return [await hg.admin.topics.get(name) for name in topics] if topics else await hg.admin.topics.list()

    settings_of = effective_settings if effective else operator_settings
    documents: dict[str, dict[str, object]] = {}
    for info in with_client(server, act):
        if (settings := settings_of(info)) or topics:
            documents[info.name] = {"version": info.version, **settings} if versions else settings
    if format == "json":
        print(as_json({"topics": documents}, indent=2))
    else:
        print_lines(as_toml(documents))


def history_command(name: Annotated[str, Parameter(help="Topic.")], *, limit: Limit = 20, shown: Shown = SHOWN) -> None:
    """Show the versions of the policy of a topic, newest first: who changed what, and why."""
    show_list(
        shown,
        lambda hg: hg.admin.topics.history(name, limit=limit),
        HISTORY,
        name=lambda one: one.version,
        empty=f"{name} was never changed",
        fields=lambda one: asdict(one) | {"changes": [_change_fields(change) for change in one.changes]},
    )


def _lines(one: AppliedPolicy, *, dry_run: bool) -> Iterator[str]:
    if not one.changes:
        yield f"{one.name}: no changes"
        return
    count = f"{len(one.changes)} change{'' if len(one.changes) == 1 else 's'}"
    if dry_run:
        yield f"{one.name}: {count}, dry run" if one.topic is not None else f"{one.name}: new topic, {count}, dry run"
    else:
        version = one.topic.version if one.topic is not None else 0
        yield f"{one.name}: {count}, version {one.before_version} -> {version}"
    width = max(len(change.setting) for change in one.changes)
    for change in one.changes:
        yield f"  {change.setting.replace('_', '-'):<{width}}  {_side(change, 'before')} -> {_side(change, 'after')}"
        if change.setting == "payload_schema":
            yield from (f"    {line}" for line in _schema_lines(change))


def _side(change: PolicyChange, side: Literal["before", "after"]) -> str:
    """A value, with its origin if that changes."""
    value, origin = getattr(change, side), getattr(change, f"{side}_origin")
    text = value_text(change.setting, value)
    same = change.before_origin == change.after_origin
    return text if same else f"{text} ({origin})"


def _schema_lines(change: PolicyChange) -> Sequence[str]:
    before, after = (
        json.dumps(json.loads(side), indent=2, ensure_ascii=False).splitlines() if isinstance(side, str) else []
        for side in (change.before, change.after)
    )
    return [line for line in unified_diff(before, after, lineterm="", n=1) if not line.startswith(("---", "+++"))]


def _short(change: PolicyChange) -> str:
    return f"{change.setting.replace('_', '-')} {value_text(change.setting, change.after)}"


def _change_fields(change: PolicyChange) -> dict[str, object]:
    return asdict(change) | {
        side: document_value(change.setting, getattr(change, side)) for side in ("before", "after")
    }


def _fields(one: AppliedPolicy) -> dict[str, object]:
    return {
        "topic": one.name,
        "dry_run": one.dry_run,
        "before_version": one.before_version,
        "version": one.topic.version if one.topic is not None else 0,
        "changes": [_change_fields(change) for change in one.changes],
    }
