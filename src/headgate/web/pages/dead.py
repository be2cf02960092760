"""Dead letters by topic and error group."""

from __future__ import annotations

from dataclasses import dataclass

from litestar.params import FromQuery

from headgate.control.bulk import GROUPS_DEFAULT
from headgate.domain.bulk import DeadGroup, dead_filter, masked_group
from headgate.domain.errors import InvalidInput
from headgate.web.request import Html, PageRequest
from headgate.web.routing import page


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group, masked, and the filter that selects it."""

    group: DeadGroup
    filter: str


@page("/dead", uses="BulkService/ListDeadGroups")
async def list_dead_letters(request: PageRequest, topic: FromQuery[str] = "") -> Html:
    """Groups, the largest first."""
    redaction = request.cases.redaction
    error: InvalidInput | None = None
    rows: list[GroupRow] = []
    found = None
    try:
        found = await request.cases.bulk.dead_groups(request.caller, topic.strip(), limit=GROUPS_DEFAULT)
        rows = [
            GroupRow(group=masked_group(one, redaction), filter=dead_filter(one.topic, group=one.group))
            for one in found.groups
        ]
    except InvalidInput as refused:
        error = refused
    return request.render(
        "dead/index.html",
        fragment="dead/_groups.html",
        status_code=200 if error is None else 400,
        found=found,
        rows=rows,
        topic=topic,
        error=error,
        total=sum(one.group.count for one in rows),
        everything=dead_filter(topic.strip()) if error is None else "",
    )
