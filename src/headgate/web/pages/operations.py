"""Bulk operations: preview, start, list, progress, cancel."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from litestar.params import FromQuery

from headgate.api.http.routing import PathId
from headgate.control.bulk import Request
from headgate.domain.bulk import Verb
from headgate.domain.errors import InvalidInput
from headgate.domain.ids import parse_job_id
from headgate.domain.validation import to_ms
from headgate.web.filters import plural
from headgate.web.forms import Form
from headgate.web.models import commands
from headgate.web.models.job_list import rows_of
from headgate.web.models.operations import DESTRUCTIVE, VERB_WORDS, OperationView, PreviewView
from headgate.web.pages.jobs import base_of, delay_in, priority_in
from headgate.web.request import Html, PageRequest
from headgate.web.routing import PREFIX, action, page

PAGE = 50


@page("/operations", uses="BulkService/ListBulk")
async def list_operations(
    request: PageRequest, before: FromQuery[UUID | None] = None, active: FromQuery[str] = ""
) -> Html:
    """Operations, newest first."""
    found = await request.cases.bulk.operations(request.caller, active=bool(active), before=before, limit=PAGE)
    now = datetime.now(UTC)
    return request.render(
        "operations/index.html",
        fragment="operations/_list.html",
        operations=[OperationView(operation=one, now=now) for one in found],
        active=bool(active),
        before=before,
        following=found[-1].id if len(found) == PAGE else None,
    )


@page("/operations/new", uses="BulkService/PreviewBulk")
async def new_operation(
    request: PageRequest,
    verb: FromQuery[str] = "redrive",
    filter: FromQuery[str] = "",  # noqa: A002 - the name of the parameter
    priority: FromQuery[str] = "",
    topic: FromQuery[str] = "",
    delay: FromQuery[str] = "",
    per_second: FromQuery[str] = "",
    reason: FromQuery[str] = "",
) -> Html:
    """What an operation would change; the form that starts it."""
    given = Form(
        [
            ("verb", verb),
            ("filter", filter),
            ("priority", priority),
            ("topic", topic),
            ("delay", delay),
            ("per_second", per_second),
            ("reason", reason),
        ]
    )
    return await _preview(request, given)


@action("/operations/new", uses="BulkService/StartBulk", confirm=True)
async def start_operation(request: PageRequest) -> Html:
    """Start it. Sending the same form again starts nothing new."""
    form = request.fields
    try:
        plan = _request(form)
        operation_id = parse_job_id(form.required("operation_id"), field="operation_id")
        started = await request.cases.bulk.start(request.caller, operation_id, plan)
    except InvalidInput as error:
        return await _preview(request, form, error)
    expected = plural(started.expected, "job")
    return request.done(f"Started for {expected}.", to=f"{PREFIX}/operations/{started.id}", changed="operations")


@page("/operations/{operation_id:str}", uses="BulkService/GetBulk")
async def show_operation(request: PageRequest, operation_id: PathId) -> Html:
    """How far one is."""
    found = await request.cases.bulk.operation(request.caller, operation_id)
    options: dict[str, object] = dict(found.parameters) | ({"per_second": found.per_second} if found.per_second else {})
    return request.render(
        "operations/operation.html",
        fragment="operations/_progress.html",
        view=OperationView(operation=found, now=max(datetime.now(UTC), found.touched_at)),
        words=VERB_WORDS[found.verb],
        copy=commands.start_bulk(base_of(request), found.verb.label, found.filter, options),
    )


@action("/operations/{operation_id:str}/cancel", uses="BulkService/CancelBulk", confirm=True)
async def cancel_operation(request: PageRequest, operation_id: PathId) -> Html:
    """Stop one; what it has changed stays changed."""
    found = await request.cases.bulk.cancel(request.caller, operation_id, reason=request.fields.text("reason"))
    message = f"Cancelled after {plural(found.changed, 'job')}." if found.finished_at else "Cancelled."
    return request.done(message, changed="operations")


async def _preview(request: PageRequest, given: Form, error: InvalidInput | None = None) -> Html:
    """The page before the start. What is missing or wrong is shown at its field, and nothing can be started."""
    preview: PreviewView | None = None
    verb = _verb(given)
    if error is None and not _incomplete(verb, given):
        try:
            found = await request.cases.bulk.preview(request.caller, _request(given))
            preview = PreviewView(verb=verb, preview=found)
        except InvalidInput as refused:
            error = refused
    now = datetime.now(UTC)
    values: dict[str, Any] = {name: given.text(name) for name in ("filter", "priority", "topic", "delay", "per_second")}
    return request.render(
        "operations/new.html",
        status_code=200 if error is None else 400,
        verb=verb,
        verbs=[(one.label, VERB_WORDS[one][0]) for one in VERB_WORDS],
        words=VERB_WORDS[verb],
        destructive=verb in DESTRUCTIVE,
        values=values | {"reason": given.text("reason")},
        view=preview,
        rows=rows_of(preview.preview.sample if preview else (), request.cases.redaction, now=now),
        error=error,
        operation_id=request.cases.new_id(),
        copy=None
        if preview is None
        else commands.start_bulk(base_of(request), verb.label, given.text("filter"), _options(given)),
    )


def _incomplete(verb: Verb, given: Form) -> bool:
    """Whether the form has still to be filled in: that is no error yet."""
    needed = {Verb.REPRIORITISE: "priority", Verb.MOVE: "topic"}.get(verb, "filter")
    return not given.text("filter") or not given.text(needed)


def _verb(given: Form) -> Verb:
    text = given.text("verb")
    known = {verb.label: verb for verb in Verb}
    if text not in known:
        raise InvalidInput("verb", f"must be one of {', '.join(known)}")
    return known[text]


def _request(given: Form) -> Request:
    verb = _verb(given)
    return Request(
        verb=verb.label,
        filter=given.required("filter"),
        reason=given.text("reason"),
        priority=priority_in(given) if verb is Verb.REPRIORITISE else None,
        topic=given.required("topic") if verb is Verb.MOVE else None,
        delay=delay_in(given) if verb is Verb.REDRIVE else timedelta(0),
        per_second=given.integer("per_second"),
    )


def _options(given: Form) -> dict[str, object]:
    """The options of a command that does the same."""
    found: dict[str, object] = {}
    if given.text("priority"):
        found["priority"] = priority_in(given)
    if given.text("topic"):
        found["topic"] = given.text("topic")
    if given.text("delay"):
        found["delay_ms"] = to_ms(delay_in(given))
    if given.text("per_second"):
        found["per_second"] = given.integer("per_second")
    if given.text("reason"):
        found["reason"] = given.text("reason")
    return found
