"""The list of jobs: filter, tabs, paging, suggestions, and verbs on selected jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any, Final
from uuid import UUID

from litestar import Response
from litestar.datastructures import Cookie
from litestar.params import FromQuery, QueryParameter

from headgate.api.http.handover import StreamResponse
from headgate.control.admin import JobAnswer
from headgate.control.job_exports import EXPORT_MAX
from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.domain.filter_parser import parse
from headgate.domain.filter_suggestions import SHOWN_MAX, Suggestion, Suggestions
from headgate.domain.filters import InvalidFilter
from headgate.domain.ids import IdKind, parse_job_id
from headgate.domain.validation import parse_priority
from headgate.web.filters import number, plural
from headgate.web.forms import Form
from headgate.web.models import commands
from headgate.web.models.job_list import (
    COLUMNS,
    COLUMNS_COOKIE,
    COUNT_UP_TO,
    SIZES,
    Query,
    columns_of,
    matching_count,
    only_topic,
    rows_of,
    tabs_of,
)
from headgate.web.request import Html, PageRequest
from headgate.web.routing import PREFIX, action, page, safe_path

_SHOWN_REFUSALS: Final = 3
_YEAR_SECONDS: Final = 31_536_000
_DIGITS: Final = re.compile(r"[0-9A-Fa-f]{4}[0-9A-Fa-f-]{0,32}")
"""The beginning of an id."""
Order = Annotated[str, QueryParameter(description="newest or oldest")]


@page("/jobs", uses="BulkService/ListJobs")
async def list_jobs(
    request: PageRequest,
    filter: FromQuery[str] = "",  # noqa: A002 - the name of the parameter
    order: Order = "newest",
    cursor: FromQuery[str] = "",
    limit: FromQuery[int] = 50,
) -> Html:
    """One page of the jobs that match."""
    size = limit if limit in SIZES else 50
    query = Query(filter=filter.strip(), oldest=order == "oldest", cursor=cursor, limit=size)
    columns = columns_of(request.cookies.get(COLUMNS_COOKIE, ""))
    shown: dict[str, Any] = {
        "query": query,
        "columns": columns,
        "all_columns": COLUMNS,
        "shown_columns": columns,
        "sizes": SIZES,
        "copies": [
            ("List", commands.list_jobs(base_of(request), query.filter, oldest=query.oldest)),
            ("Export", commands.export_jobs(query.filter)),
        ],
        "export_max": EXPORT_MAX,
    }
    try:
        found = await request.cases.bulk.browse(
            request.caller, query.filter, limit=query.limit, cursor=query.cursor, oldest=query.oldest
        )
    except InvalidInput as error:
        if _DIGITS.fullmatch(query.filter) and (to := await _by_id(request, query)):
            return Response("", status_code=303, headers={"location": to})
        return request.render("jobs/index.html", status_code=400, found=None, **_refused(error), **shown)
    total, exact = matching_count(found.filter, found.counted)
    rows = rows_of(found.page.jobs, request.cases.redaction, now=found.page.read_at)
    if not any(row.error for row in rows):
        shown["shown_columns"] = tuple(name for name in shown["columns"] if name != "error")
    topic = only_topic(found.filter)
    return request.render(
        "jobs/index.html",
        fragment="jobs/_list.html",
        found=found,
        pause=await request.cases.admin.pause_of(request.caller, topic) if topic else None,
        rows=rows,
        tabs=tabs_of(found.filter, found.counted),
        counting="once" if found.counted is None else "live",
        total=total,
        exact=exact,
        now=found.page.read_at,
        problem=None,
        **shown,
    )


async def _by_id(request: PageRequest, query: Query) -> str:
    """Where to go for the first digits of an id that were typed as a filter; empty if no job has them."""
    ids, _ = await request.cases.admin.find_ids(request.caller, IdKind.JOB, query.filter)
    if len(ids) == 1:
        return f"{PREFIX}/jobs/{ids[0]}"
    return query.href(filter=f"id:{','.join(map(str, ids))}") if ids else ""


def base_of(request: PageRequest) -> str:
    """The address of the server as the browser knows it."""
    return str(request.base_url).rstrip("/")


def _refused(error: InvalidInput) -> dict[str, Any]:
    place = error.position if isinstance(error, InvalidFilter) else None
    return {"problem": error, "place": place, "rows": (), "tabs": (), "total": None, "exact": False}


@page("/jobs/counts", uses="BulkService/CountJobs", part=True)
async def count_jobs(request: PageRequest, filter: FromQuery[str] = "") -> Html:  # noqa: A002 - the name of the parameter
    """The tabs of a filter that only counting can tell; read after the list."""
    counted = await request.cases.bulk.count_by_state(request.caller, filter, up_to=COUNT_UP_TO)
    matching = parse(filter)
    total, exact = matching_count(matching, counted)
    return request.render(
        "jobs/_counts.html",
        fragment="jobs/_counts.html",
        query=Query(filter=filter),
        tabs=tabs_of(matching, counted),
        counting="live" if matching.is_counted else "",
        total=total,
        exact=exact,
    )


@page("/jobs/export", uses="BulkService/ListJobs", download=True)
async def export_jobs(
    request: PageRequest,
    filter: FromQuery[str] = "",  # noqa: A002 - the name of the parameter
    order: Order = "newest",
) -> Response[bytes]:
    """The jobs that match with their payloads, masked, as NDJSON: what `headgate export` writes."""
    lines = await request.cases.job_exports.open(request.caller, filter.strip(), oldest=order == "oldest")
    answer = StreamResponse(lines, str.encode, media_type="application/x-ndjson")
    answer.headers.update(
        {"content-disposition": 'attachment; filename="jobs.ndjson"', "x-content-type-options": "nosniff"}
    )
    return answer


@page("/jobs/suggest", uses="BulkService/ListJobs", part=True)
async def suggest_filter(request: PageRequest, filter: FromQuery[str] = "", caret: FromQuery[int] = 0) -> Response[str]:  # noqa: A002
    """What can stand at the caret of the filter bar, for static/js/combobox.js."""
    found = await request.cases.suggestions.at(request.caller, filter, caret)
    return _suggested(found)


@page("/jobs/topics", uses="BulkService/ListJobs", part=True)
async def suggest_topics(request: PageRequest, text: FromQuery[str] = "") -> Response[str]:
    """Names of topics for forms."""
    names = await request.cases.suggestions.topics(request.caller, text)
    return _suggested(Suggestions(start=0, words=[Suggestion(text=name) for name in names[:SHOWN_MAX]]))


def _suggested(found: Suggestions) -> Response[str]:
    note = f"from the newest {number(found.sampled)} jobs" if found.sampled else ""
    body = {"start": found.start, "note": note, "words": [{"text": one.text, "note": one.note} for one in found.words]}
    return Response(json.dumps(body), media_type="application/json", headers={"cache-control": "no-store"})


@action("/jobs/columns", uses="BulkService/ListJobs")
async def choose_columns(request: PageRequest) -> Html:
    """Which columns this browser shows."""
    named = [name for name in COLUMNS if name in request.fields.many("column")]
    cookie = Cookie(
        key=COLUMNS_COOKIE,
        value=".".join(named),
        path="/",
        max_age=_YEAR_SECONDS,
        httponly=True,
        secure=request.visitor.secure,
        samesite="strict",
    )
    return request.done("", to=next_of(request), cookies=[cookie])


# ---------------------------------------------------------------------- verbs on jobs by id


@action("/jobs/redrive", uses="AdminService/RedriveJobs")
async def redrive_jobs(request: PageRequest) -> Html:
    """Return finished jobs to their topics."""
    form = request.fields
    answers = await request.cases.admin.redrive(
        request.caller, _ids(form), delay=delay_in(form), reason=form.text("reason")
    )
    return _answered(request, answers, "redriven")


@action("/jobs/cancel", uses="AdminService/CancelJobs", confirm=True)
async def cancel_jobs(request: PageRequest) -> Html:
    """Cancel queued jobs at once, and ask the workers of running ones to stop."""
    answers = await request.cases.admin.cancel(
        request.caller, _ids(request.fields), reason=request.fields.text("reason")
    )
    return _answered(request, answers, "cancelled, or asked to stop")


@action("/jobs/discard", uses="AdminService/DiscardJobs", confirm=True)
async def discard_jobs(request: PageRequest) -> Html:
    """Delete dead and cancelled jobs; their history stays."""
    answers = await request.cases.admin.discard(
        request.caller, _ids(request.fields), reason=request.fields.text("reason")
    )
    left = request.fields.flag("single") and all(one.changed for one in answers)  # the page of the job is no more
    return _answered(request, answers, "discarded", to=f"{PREFIX}/jobs" if left else "")


@action("/jobs/reprioritise", uses="AdminService/ReprioritiseJobs")
async def reprioritise_jobs(request: PageRequest) -> Html:
    """Change the priority of queued jobs."""
    form = request.fields
    answers = await request.cases.admin.reprioritise(
        request.caller, _ids(form), priority=priority_in(form), reason=form.text("reason")
    )
    return _answered(request, answers, "reprioritised")


@action("/jobs/move", uses="AdminService/MoveJobs")
async def move_jobs(request: PageRequest) -> Html:
    """Move queued jobs to another topic."""
    form = request.fields
    answers = await request.cases.admin.move(
        request.caller, _ids(form), topic=form.required("topic"), reason=form.text("reason")
    )
    return _answered(request, answers, "moved")


def _ids(form: Form) -> list[UUID]:
    return list(dict.fromkeys(parse_job_id(one, field="id") for one in form.many("id")))


def delay_in(form: Form) -> timedelta:
    """The delay of a form; none if the field is empty."""
    return form.duration("delay", timedelta(0))


def priority_in(form: Form, name: str = "priority") -> int:
    """The priority of a form: a number, or the name of a tier."""
    return parse_priority(form.required(name))


def _answered(request: PageRequest, answers: Sequence[JobAnswer], done: str, *, to: str = "") -> Html:
    """What became of the jobs; of one job alone, its error is the answer."""
    errors = [one.error for one in answers if one.error is not None]
    if len(answers) == 1 and errors:
        raise errors[0]
    changed = sum(one.changed for one in answers)
    message = f"{plural(changed, 'job')} {done}."
    if errors:
        message = f"{number(changed)} of {plural(len(answers), 'job')} {done}. {_refusals(errors)}"
    elif changed < len(answers):
        message = f"{number(changed)} of {plural(len(answers), 'job')} {done}; the others were so before."
    return request.done(message, to=to or next_of(request), changed="jobs", level="info" if errors else "ok")


def next_of(request: PageRequest) -> str:
    """The page that a form names to go on with, if it is one of ours; else that which sent the form."""
    named = request.fields.text("next")
    return safe_path(named) if named else ""


def _refusals(errors: Sequence[HeadgateError]) -> str:
    shown = "; ".join(str(error) for error in errors[:_SHOWN_REFUSALS])
    more = len(errors) - _SHOWN_REFUSALS
    return f"Not changed: {shown}" + (f"; and {number(more)} more." if more > 0 else ".")
