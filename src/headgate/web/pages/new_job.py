"""Submit a job from a form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

import msgspec
from litestar.params import FromQuery

from headgate.api.http.new_jobs import NewJob, UniqueIn, raw_job, submission_of
from headgate.control.payload_edits import parsed
from headgate.control.submit import taken
from headgate.domain.errors import Conflict, HeadgateError, InvalidInput
from headgate.domain.ids import id_from_bytes
from headgate.domain.redaction import MASK
from headgate.domain.states import SubmitReceipt
from headgate.domain.validation import MILLISECOND
from headgate.web.forms import Form
from headgate.web.models.bodies import body_of
from headgate.web.pages.jobs import delay_in, priority_in
from headgate.web.request import Html, PageRequest
from headgate.web.routing import PREFIX, action, page

FIELDS: Final = ("topic", "payload", "priority", "delay", "tags", "key", "max_attempts", "unique")
_NAMES: Final = {"delay_ms": "delay", "unique.key": "unique"}
"""Fields of the API that have another name in the form."""


@page("/jobs/new", uses="ProducerService/Submit")
async def new_job(request: PageRequest, topic: FromQuery[str] = "", like: FromQuery[UUID | None] = None) -> Html:
    """The form; `like`: filled with the payload and options of a job."""
    values = dict.fromkeys(FIELDS, "") | {"topic": topic, "payload": "{}"}
    if like is not None:
        job = await request.cases.jobs.get(request.caller, like, payload=True)
        body = body_of(job.payload, request.cases.redaction, whole=True)
        values |= {"topic": job.topic, "priority": str(job.priority), "tags": ", ".join(job.tags)}
        values["payload"] = body.text if body.kind in ("json", "text") else ""
    return _form(request, values)


@action("/jobs/new", uses="ProducerService/Submit")
async def submit_job(request: PageRequest) -> Html:
    """Submit the job, and show it."""
    form = request.fields
    try:
        job = raw_job(_job(form))
        result = taken(await request.cases.submits.one(request.caller, job, submission_of, plain=False))
    except (InvalidInput, Conflict) as error:
        return _form(request, {name: form.raw(name) for name in FIELDS}, error)
    job_id = id_from_bytes(result.job_id)
    known = result.receipt is SubmitReceipt.DUPLICATE
    message = "A job with this key and payload exists already." if known else "Job submitted."
    return request.done(message, to=f"{PREFIX}/jobs/{job_id}", changed="jobs", level="info" if known else "ok")


def _job(form: Form) -> NewJob:
    text = form.raw("payload")
    if text.strip():
        parsed(text)
    if MASK in text:  # of a job that was copied: only its own page knows what a mask stands for
        raise InvalidInput("payload", f"has {MASK} where a secret was masked; write the value")
    delay = delay_in(form)
    unique = form.text("unique")
    fields: dict[str, object] = {
        "topic": form.required("topic"),
        "payload": msgspec.Raw(text.strip().encode()) if text.strip() else msgspec.UNSET,
        "priority": priority_in(form) if form.text("priority") else None,
        "delay_ms": delay // MILLISECOND if delay else None,
        "tags": [tag.strip() for tag in form.text("tags").split(",") if tag.strip()],
        "key": form.text("key") or None,
        "max_attempts": form.integer("max_attempts"),
    }
    if unique:
        fields["unique"] = UniqueIn(key=unique)
    return NewJob(**fields)  # type: ignore[arg-type]  # the domain checks each of them


def _form(request: PageRequest, values: Mapping[str, str], error: HeadgateError | None = None) -> Html:
    field = error.field if isinstance(error, InvalidInput) else "key" if isinstance(error, Conflict) else ""
    place = _NAMES.get(field, field.partition("/")[0].partition("[")[0])
    return request.render(
        "jobs/new.html", status_code=200 if error is None else 400, values=values, error=error, error_field=place
    )
