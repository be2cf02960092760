"""Topics: what waits, runs and fails; pause and resume. The policy of a topic is in topic_policies."""

from __future__ import annotations

from typing import Final

from litestar.params import FromPath, FromQuery

from headgate.control.topic_table import Order, topic_page, topic_table
from headgate.domain.errors import InvalidInput
from headgate.domain.views import Target, TargetKind
from headgate.web.cookies import Undo
from headgate.web.filters import as_us
from headgate.web.pages.topic_policies import settings_of
from headgate.web.rendering import pager, url
from headgate.web.request import Html, PageRequest
from headgate.web.routing import action, page

ROWS: Final = 100


@page("/topics", uses="TopicService/ListTopics")
async def list_topics(
    request: PageRequest, q: FromQuery[str] = "", sort: FromQuery[str] = "name", offset: FromQuery[int] = 0
) -> Html:
    """All topics in one table."""
    found = await topic_table(
        request.cases.admin,
        request.caller,
        search=q,
        order=Order.parse(sort),
        offset=max(0, offset),
        limit=ROWS,
    )
    following = offset + ROWS if offset + ROWS < found.matching else 0
    return request.render(
        "topics/index.html",
        fragment="topics/_table.html",
        found=found,
        q=q,
        sort=sort,
        orders=[(order.value, f"by {order.value}") for order in Order],
        **pager("topics", q=q, sort=sort, at="offset", here=offset, following=following),
    )


@page("/topics/{topic:str}", uses="TopicService/GetTopic")
async def show_topic(request: PageRequest, topic: FromPath[str], since: FromQuery[str] = "1h") -> Html:
    """One topic."""
    found = await topic_page(request.cases.admin, request.cases.topics, request.caller, topic)
    return request.render(
        "topics/topic.html",
        fragment="topics/_status.html",
        found=found,
        row=found.row,
        topic=found.view,
        settings=settings_of(found.view),
        since=since,
    )


# ---------------------------------------------------------------------- pause and resume


@action("/topics/{topic:str}/pause", uses="AdminService/Pause")
async def pause_topic(request: PageRequest, topic: FromPath[str]) -> Html:
    """Stop dispatch of a topic."""
    target = Target(kind=TargetKind.TOPIC, topic=topic)
    since = await _pause(request, target)
    return request.done(
        f"Topic {topic} is paused.", changed="topics", undo=Undo(url("topics", topic, "resume"), {"since": since})
    )


@action("/topics/{topic:str}/resume", uses="AdminService/Resume")
async def resume_topic(request: PageRequest, topic: FromPath[str]) -> Html:
    """Resume dispatch of a topic."""
    return await _resume(request, Target(kind=TargetKind.TOPIC, topic=topic), f"Topic {topic}")


@action("/dispatch/pause", uses="AdminService/Pause")
async def pause_dispatch(request: PageRequest) -> Html:
    """Stop dispatch of all topics of the tenant, or of all tenants."""
    target, name = _wide_target(request)
    since = await _pause(request, target)
    return request.done(
        f"{name}: dispatch is paused.",
        changed="topics",
        undo=Undo(url("dispatch", "resume"), {"target": target.kind.value, "since": since}),
    )


@action("/dispatch/resume", uses="AdminService/Resume")
async def resume_dispatch(request: PageRequest) -> Html:
    """Resume it."""
    return await _resume(request, *_wide_target(request))


async def _pause(request: PageRequest, target: Target) -> str:
    """Returns what names this pause, so that an undo does not end another one."""
    form = request.fields
    lasts = form.duration("lasts")
    done = await request.cases.admin.pause(request.caller, target, reason=form.text("reason"), lasts=lasts)
    return as_us(done.since)


async def _resume(request: PageRequest, target: Target, name: str) -> Html:
    form = request.fields
    changed = await request.cases.admin.resume(
        request.caller, target, reason=form.text("reason"), since=form.moment("since")
    )
    message = f"{name} is resumed." if changed else f"{name} was not paused."
    return request.done(message, changed="topics")


def _wide_target(request: PageRequest) -> tuple[Target, str]:
    match request.fields.text("target"):
        case TargetKind.TENANT:
            return Target(kind=TargetKind.TENANT), "All topics of this tenant"
        case TargetKind.EVERYTHING:
            return Target(kind=TargetKind.EVERYTHING), "All tenants"
        case other:
            raise InvalidInput("target", f'"{other}" cannot be paused here', hint="use tenant or everything")
