"""Schedules: list, one with its next and recent runs, create and edit with the timing in words, and the verbs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from litestar.params import FromPath, FromQuery, QueryParameter

from headgate.control.schedule_pages import RECENT, UPCOMING, schedule_list, schedule_page
from headgate.domain.cron import check_zone
from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.domain.schedules import Timing, check_schedule_name
from headgate.domain.timestamps import MAX_US, from_unix_us, unix_us
from headgate.web import schedule_forms as forms
from headgate.web.cookies import Undo
from headgate.web.filters import as_us
from headgate.web.forms import Form
from headgate.web.rendering import pager, url
from headgate.web.request import Html, PageRequest
from headgate.web.routing import action, page

ROWS: Final = 100
Before = Annotated[int | None, QueryParameter(ge=0, le=MAX_US)]


@page("/schedules", uses="ScheduleService/List")
async def list_schedules(request: PageRequest, after: FromQuery[str] = "") -> Html:
    """All schedules by name."""
    found = await schedule_list(request.cases.admin, request.cases.schedules, request.caller, after=after, limit=ROWS)
    return request.render(
        "schedules/index.html",
        fragment="schedules/_table.html",
        found=found,
        words_of=_words,
        **pager("schedules", at="after", here=after, following=found.next_after),
    )


@page("/schedules/-new", uses="ScheduleService/Put")  # names begin with a letter or digit: none is hidden by this
async def new_schedule(request: PageRequest, topic: FromQuery[str] = "") -> Html:
    """The form of a new one."""
    fields = forms.fields_of(None, request.cases.redaction) | {"topic": topic}
    return request.render("schedules/edit.html", **_form(fields), name="", known=0, explained=None)


@page("/schedules/-explain", uses="ScheduleService/Next", part=True)
async def explain(request: PageRequest) -> Html:
    """A timing in words, and when it would fire: a part of the form."""
    form = Form(list(request.query_params.multi_items()))
    return request.render("schedules/_explained.html", explained=await _explained(request, form), local=local)


@page("/schedules/{name:str}", uses="ScheduleService/Get")
async def show_schedule(request: PageRequest, name: FromPath[str], before: Before = None) -> Html:
    """One schedule."""
    found = await schedule_page(
        request.cases.admin,
        request.cases.schedules,
        request.caller,
        name,
        before=None if before is None else from_unix_us(before),
    )
    runs = found.runs
    following = unix_us(runs[-1].occurrence) if len(runs) == RECENT else None
    return request.render(
        "schedules/schedule.html",
        fragment="schedules/_schedule.html",
        found=found,
        schedule=found.view,
        words=_words(found.view.spec.timing),
        local=local,
        now=found.now,
        zone=_zone(found.view.spec.timing),
        payload=forms.payload_text(found.view.spec.payload, request.cases.redaction),
        **pager("schedules", name, at="before", here=before, following=following),
    )


@page("/schedules/{name:str}/edit", uses="ScheduleService/Put")
async def edit_schedule(request: PageRequest, name: FromPath[str]) -> Html:
    """The form of one that exists."""
    view = await request.cases.schedules.get(request.caller, name)
    fields = forms.fields_of(view.spec, request.cases.redaction)
    editable = forms.payload_text(view.spec.payload, request.cases.redaction) is not None
    explained = await _explained(request, Form(list(fields.items())))
    return request.render(
        "schedules/edit.html", **_form(fields, editable=editable), name=name, known=view.version, explained=explained
    )


@action("/schedules/-explain", uses="ScheduleService/Next")
async def explain_form(request: PageRequest) -> Html:
    """The form again, with its timing in words: for browsers without JavaScript."""
    form = request.fields
    empty = forms.fields_of(None, request.cases.redaction)
    fields = empty | {name: value for name, value in form if name in empty}
    return request.render(
        "schedules/edit.html",
        **_form(fields, editable="payload" in form),
        name=form.text("name"),
        known=form.integer("version") or 0,
        explained=await _explained(request, form),
    )


@action("/schedules", uses="ScheduleService/Put")
async def save_schedule(request: PageRequest) -> Html:
    """Create a schedule, or replace the one that the form was made from."""
    form = request.fields
    name = check_schedule_name(form.required("name"))
    version = form.integer("version") or 0
    before = (await request.cases.schedules.get(request.caller, name)).spec if version else None
    view, changed = await request.cases.schedules.put(
        request.caller, name, forms.spec_of(form, before, request.cases.redaction), expected=version
    )
    message = f"Schedule {view.name} is saved." if changed else "Nothing was changed."
    return request.done(message, to=url("schedules", view.name))


@action("/schedules/{name:str}/pause", uses="ScheduleService/Pause")
async def pause_schedule(request: PageRequest, name: FromPath[str]) -> Html:
    """Stop firing."""
    view = await request.cases.schedules.pause(request.caller, name, reason=request.fields.text("reason"))
    return request.done(
        f"Schedule {name} is paused.",
        changed="schedules",
        undo=Undo(url("schedules", name, "resume"), {"since": as_us(view.paused_at)}),
    )


@action("/schedules/{name:str}/resume", uses="ScheduleService/Resume")
async def resume_schedule(request: PageRequest, name: FromPath[str]) -> Html:
    """Continue with the next occurrence."""
    form = request.fields
    await request.cases.schedules.resume(request.caller, name, reason=form.text("reason"), since=form.moment("since"))
    return request.done(f"Schedule {name} is resumed.", changed="schedules")


@action("/schedules/{name:str}/run", uses="ScheduleService/Trigger")
async def run_schedule(request: PageRequest, name: FromPath[str]) -> Html:
    """One job now."""
    job_id, _ = await request.cases.schedules.trigger(
        request.caller, name, request=request.cases.new_id(), reason=request.fields.text("reason")
    )
    return request.done(f"A job was made: {job_id}.", changed="schedules")


@action("/schedules/{name:str}/delete", uses="ScheduleService/Delete", confirm=True)
async def delete_schedule(request: PageRequest, name: FromPath[str]) -> Html:
    """Remove a schedule; its jobs stay."""
    await request.cases.schedules.delete(
        request.caller, name, expected=request.fields.integer("version"), reason=request.fields.text("reason")
    )
    return request.done(f"Schedule {name} is deleted. Its jobs stay.", to=url("schedules"))


def _words(timing: Timing) -> str:
    """In words; a stored one whose zone is not known any more is still shown."""
    try:
        return forms.words_of(timing)
    except InvalidInput as error:
        return str(error)


def _zone(timing: Timing) -> str:
    """The zone of a stored timing; UTC for one that is not known any more."""
    try:
        return forms.zone_of(timing).key
    except InvalidInput:
        return "UTC"


async def _explained(request: PageRequest, form: Form) -> forms.Explained | HeadgateError:
    try:
        timing = forms.timing_of(form)
        upcoming = await request.cases.schedules.preview(timing, count=UPCOMING)
        return forms.Explained(words=forms.words_of(timing), zone=forms.zone_of(timing).key, upcoming=upcoming)
    except HeadgateError as error:
        return error.with_traceback(None)


def _form(fields: dict[str, str], *, editable: bool = True) -> dict[str, Any]:  # for a template
    return {
        "fields": fields,
        "editable": editable,
        "kinds": forms.KINDS,
        "overlaps": forms.OVERLAPS,
        "catch_ups": forms.CATCH_UPS,
        "when_fulls": forms.WHEN_FULL,
        "local": local,
    }


def local(at: datetime, zone: str, *, seconds: bool = False) -> str:
    """A time by the clocks of a zone."""
    shown = at.astimezone(check_zone(zone))
    return f"{shown:%a %Y-%m-%d %H:%M:%S}" if seconds else f"{shown:%a %Y-%m-%d %H:%M}"
