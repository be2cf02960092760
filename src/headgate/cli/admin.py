"""`headgate pause`, `resume` and `audit`: stop and resume dispatch, show who changed what."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Final

from cyclopts import Parameter

from headgate.cli import output as out
from headgate.cli import values
from headgate.cli.connection import redaction_of, with_client
from headgate.cli.lists import show_list
from headgate.cli.options import DEFAULT_SERVER, SHOWN, Limit, Output, Reason, Server, Shown, Since
from headgate.cli.output import Columns, print_one, when
from headgate.domain.errors import InvalidInput
from headgate.domain.validation import shown
from headgate.sdk import Headgate
from headgate.sdk.admin import AuditEntry, PauseInfo

Topic = Annotated[str | None, Parameter(help="One topic.")]
Tenant = Annotated[bool, Parameter(help="All topics of the tenant of your token.")]
Everything = Annotated[bool, Parameter(help="All tenants. Requires a token with the scope system.")]
AUDIT: Final[Columns[AuditEntry]] = {
    "NO": lambda one: one.no,
    "TIME": lambda one: one.at,
    "TENANT": lambda one: one.tenant or None,
    "ACTOR": lambda one: one.actor,
    "CHANGE": lambda one: one.verb,
    "TARGET": lambda one: one.target,
    "REASON": lambda one: one.reason,
    "DETAIL": lambda one: json.dumps(one.detail, ensure_ascii=False) if one.detail else "",
}


def pause_command(
    topic: Topic = None,
    *,
    tenant: Tenant = False,
    everything: Everything = False,
    reason: Reason = "",
    until: Annotated[
        str | None, Parameter(help="When the pause ends: 2026-12-24T18:00:00Z, or a duration such as 30m.")
    ] = None,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Stop dispatching jobs for a topic, a tenant, or everything. Running jobs continue; new jobs wait."""
    _check_target("pause", topic, tenant, everything)
    end = _end(until)
    done = with_client(
        server, lambda hg: hg.admin.pause(topic=topic, tenant=tenant, everything=everything, reason=reason, until=end)
    )
    print_one(done, output, lambda: [pause_line(done)], name=topic or done.target)


def resume_command(
    topic: Topic = None,
    *,
    tenant: Tenant = False,
    everything: Everything = False,
    reason: Reason = "",
    since: Since = None,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Resume dispatching jobs for a topic, a tenant, or everything. Has no effect on a target that is not paused."""
    _check_target("resume", topic, tenant, everything)
    began = None if since is None else values.timestamp(since, field="--since")
    changed = with_client(
        server,
        lambda hg: hg.admin.resume(topic=topic, tenant=tenant, everything=everything, reason=reason, since=began),
    )
    target = f"topic {topic}" if topic is not None else "everything" if everything else "tenant"
    text = f"{target} is resumed" if changed else f"{target} was not paused"
    print_one({"target": target, "changed": changed}, output, lambda: [text], name=topic or target)


def audit_command(
    *,
    limit: Limit = 50,
    before: Annotated[int, Parameter(help="Show entries before this number: the last number of the page before.")] = 0,
    actor: Annotated[str, Parameter(help="Only changes by this token or key.")] = "",
    verb: Annotated[str, Parameter(help="Only changes of this kind: pause, apply_topic, rotate_key and so on.")] = "",
    target: Annotated[str, Parameter(help="Only changes whose target contains this text: billing, webhook.")] = "",
    since: Annotated[
        str, Parameter(help="Only changes since then: 2026-11-16T08:00:00Z, or 24h for that long ago.")
    ] = "",
    until: Annotated[str, Parameter(help="Only changes before then.")] = "",
    shown: Shown = SHOWN,
) -> None:
    """Show the audit log, newest entry first. Changes of a single job are in its history: headgate job events."""
    start, end = _past(since, field="--since"), _past(until, field="--until")
    older, all_tenants, redaction = 0, False, redaction_of(shown.server)

    async def read(hg: Headgate) -> list[AuditEntry]:
        nonlocal older, all_tenants
        found = await hg.admin.audit(
            before=before, limit=limit, actor=actor, verb=verb, target=target, since=start, until=end
        )
        older, all_tenants = found.next_before, found.all_tenants
        return [replace(one, reason=redaction.masked_text(one.reason)) for one in found]

    show_list(
        shown,
        read,
        lambda: AUDIT if all_tenants else {name: value for name, value in AUDIT.items() if name != "TENANT"},
        name=lambda one: one.no,
        empty="no entries match" if actor or verb or target or since or until else "the audit log is empty",
        notes=lambda _: [f"older entries: add --before {older}"] if older else [],
    )


def pause_line(pause: PauseInfo) -> str:
    """Return a pause as one line."""
    parts = [pause.target]
    if pause.since is not None:
        parts.append(f"since {when(pause.since)}")
    if pause.until is not None:
        parts.append(f"until {when(pause.until)}")
    if pause.who:
        parts.append(f"by {pause.who}")
    return " ".join(parts) + (f": {pause.reason}" if pause.reason else "")


def _check_target(command: str, topic: str | None, *others: bool) -> None:
    if (topic is not None) + sum(others) != 1:
        raise InvalidInput(
            "target",
            "give a topic, --tenant or --everything, and one of them",
            hint=f"for example: headgate {command} mail",
        )


def _past(text: str, *, field: str) -> datetime | None:
    """A time, or one so long ago."""
    if not text:
        return None
    given = values.duration_or_timestamp(text, field=field)
    return given if isinstance(given, datetime) else out.now() - given


def _end(until: str | None) -> datetime | None:
    if until is None:
        return None
    if until[:1].isdigit() and "T" not in until and ":" not in until:
        try:
            return out.now() + values.duration(until, field="--until")
        except OverflowError:
            problem = f"is out of range (must be before 9999-12-31), got {shown(until)}"
            raise InvalidInput("--until", problem) from None
    return values.timestamp(until, field="--until")
