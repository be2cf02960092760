"""The audit log: who changed what, with what was before and after."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from litestar.params import FromQuery, QueryParameter

from headgate.domain.units import duration
from headgate.domain.views import AuditFilter, AuditView
from headgate.web.forms import utc_time
from headgate.web.rendering import pager, url
from headgate.web.request import Html, PageRequest
from headgate.web.routing import page

ROWS: Final = 50
_PAIRS: Final = (("old", "new"), ("before", "now"), ("before", "after"))
"""How the details of a change name its two sides."""
_LONGEST: Final = timedelta(days=3650)


@page("/audit", uses="AdminService/ListAudit")
async def list_audit(
    request: PageRequest,
    actor: FromQuery[str] = "",
    verb: FromQuery[str] = "",
    target: FromQuery[str] = "",
    since: FromQuery[str] = "",
    until: FromQuery[str] = "",
    before: Annotated[int | None, QueryParameter(ge=1, le=2**63 - 1)] = None,
) -> Html:
    """Entries that match, newest first."""
    wanted = AuditFilter(
        actor=actor.strip(),
        verb=verb.strip().replace(" ", "_"),
        target=target.strip(),
        since=_moment(since, field="since"),
        until=_moment(until, field="until"),
    )
    found = await request.cases.admin.audit(request.caller, before=before, limit=ROWS, wanted=wanted)
    mask = request.cases.redaction.masked_text
    found = replace(found, entries=[replace(one, reason=mask(one.reason)) for one in found.entries])
    given = {"actor": actor, "verb": verb, "target": target, "since": since, "until": until}
    return request.render(
        "audit/index.html",
        fragment="audit/_table.html",
        found=found,
        given=given,
        filtered=bool(wanted),
        changes_of=changes_of,
        link_of=link_of if request.caller.tenant else _no_link,  # pages of topics and jobs are those of one tenant
        **pager("audit", **given, at="before", here=before, following=found.next_before),
    )


def changes_of(entry: AuditView) -> tuple[list[tuple[str, str, str]], dict[str, object]]:
    """What changed, as name, before and after; and the details that are no change."""
    detail = dict(entry.detail)
    for old, new in _PAIRS:
        if new in detail:
            before, after = _sides(detail.pop(old, None)), _sides(detail.pop(new, None))
            names = dict.fromkeys((*before, *after))
            changed = [
                (name, _text(before, name), _text(after, name))
                for name in names
                if _text(before, name) != _text(after, name)
            ]
            return changed, detail
    return [], detail


def link_of(target: str) -> str:
    """The page of what was changed; empty if it has none."""
    kind, _, name = target.partition(" ")
    name = name.strip()
    if not name:
        return ""
    pages = {
        "topic": "topics",
        "schedule": "schedules",
        "worker": "workers",
        "webhook": "webhooks",
        "operation": "operations",
        "job": "jobs",
    }
    return url(pages[kind], name) if kind in pages else ""


def _no_link(target: str) -> str:
    del target
    return ""


def _sides(value: object) -> Mapping[str, object]:
    if isinstance(value, Mapping):
        return value
    return {} if value is None else {"value": value}


def _text(side: Mapping[str, object], name: str) -> str:
    if name not in side or side[name] is None:
        return "–"
    value = side[name]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _moment(text: str, *, field: str) -> datetime | None:
    """A time, or one so long ago: `24h`."""
    text = text.strip()
    if not text:
        return None
    if "-" not in text:
        return datetime.now(UTC) - min(duration(text, field=field), _LONGEST)
    return utc_time(text, field=field, hint="use 24h, 7d, or 2026-11-16T08:00, in UTC")
