"""One job: what happened to it, its payload and result; edit its payload and redrive it, show what is masked."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from litestar import Response
from litestar.params import FromQuery

from headgate.api.http.codec import BYTES, JSON, NOT_A_PAGE
from headgate.api.http.routing import PathId
from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.domain.redaction import Redaction
from headgate.web.models import commands
from headgate.web.models.bodies import Body, body_of
from headgate.web.models.job_page import job_page, like_payload
from headgate.web.pages.jobs import base_of, delay_in
from headgate.web.request import Html, PageRequest
from headgate.web.routing import PREFIX, action, page

EVENTS: Final = 50
"""Events on one page: each may be an attempt with its traceback. A thousand take 1.7 seconds and have 5 MB."""


@page("/jobs/{job_id:str}", uses="ProducerService/GetJob")
async def show_job(request: PageRequest, job_id: PathId, before: FromQuery[int] = 0) -> Html:
    """The page of a job; with `before`, an older part of its history."""
    job = await request.cases.jobs.get(
        request.caller, job_id, payload=True, result=True, events=True, events_before=before, events_limit=EVENTS
    )
    log = await request.cases.jobs.newest_logs_of(request.caller, job)
    shown = job_page(job, request.cases.redaction, before=before, log=log)
    base = base_of(request)
    waits = job.state.is_queued
    return request.render(
        "jobs/job.html",
        fragment="jobs/_job.html",
        pause=await request.cases.admin.pause_of(request.caller, job.topic) if waits else None,
        view=shown,
        job=job,
        now=shown.now,
        copies=[
            ("Read this job", commands.get_job(base, str(job_id))),
            ("Read its log", commands.job_logs(base, str(job_id))),
            ("Redrive it", commands.redrive_job(base, str(job_id))),
            (
                "Submit one like it",
                commands.submit_job(base, job.topic, like_payload(job.payload, request.cases.redaction)),
            ),
        ],
    )


@page("/jobs/{job_id:str}/preview", uses="ProducerService/GetJob", part=True)
async def preview_job(request: PageRequest, job_id: PathId) -> Html:
    """What the list of jobs shows beside it. Not its events: to mask a thousand of them takes 0.7 seconds."""
    job = await request.cases.jobs.get(request.caller, job_id, payload=True, result=True)
    shown = job_page(job, request.cases.redaction)
    return request.render("jobs/_preview.html", fragment="jobs/_preview.html", view=shown, job=job, now=shown.now)


@page("/jobs/{job_id:str}/payload", uses="ProducerService/GetJob", download=True)
async def download_payload(request: PageRequest, job_id: PathId) -> Response[bytes]:
    """The payload as a file, masked as it is shown."""
    job = await request.cases.jobs.get(request.caller, job_id, payload=True)
    return _file(job.payload, request.cases.redaction, f"{job_id}-payload")


@page("/jobs/{job_id:str}/result", uses="ProducerService/GetJob", download=True)
async def download_result(request: PageRequest, job_id: PathId) -> Response[bytes]:
    """The result as a file, masked as it is shown."""
    job = await request.cases.jobs.get(request.caller, job_id, result=True)
    return _file(job.result, request.cases.redaction, f"{job_id}-result")


def _file(raw: bytes | None, redaction: Redaction, name: str) -> Response[bytes]:
    body = body_of(raw, redaction, whole=True)
    is_json = body.kind == "json" or (body.kind == "text" and (raw or b"")[:1] in b"{[")
    content = (raw or b"") if body.kind in ("binary", "encrypted", "empty") else body.text.encode()
    ending = ".json" if is_json else ".txt" if body.kind == "text" else ".bin"
    return Response(
        content,
        media_type=JSON if is_json else BYTES,
        headers=NOT_A_PAGE | {"content-disposition": f'attachment; filename="{name}{ending}"'},
    )


@action("/jobs/{job_id:str}/reveal", uses="AdminService/RedriveJobs", confirm=True)
async def reveal_job(request: PageRequest, job_id: PathId) -> Html:
    """Payload, result and error unmasked, once: a page of its own, which no update reads again."""
    job = await request.cases.payload_edits.reveal(request.caller, job_id, reason=request.fields.text("reason"))
    plain = Redaction(names=())
    return request.render(
        "jobs/revealed.html",
        job=job,
        payload=body_of(job.payload, plain),
        result=body_of(job.result, plain),
        error=plain.masked_text(job.last_error or ""),
    )


@page("/jobs/{job_id:str}/edit", uses="AdminService/RedriveJobs")
async def edit_payload(request: PageRequest, job_id: PathId) -> Html:
    """The form to edit the payload of a finished job."""
    job = await request.cases.payload_edits.editable(request.caller, job_id)
    body = body_of(job.payload, request.cases.redaction, whole=True)
    return _edit_form(request, job_id, topic=job.topic, state=job.state.label, body=body, text=body.text)


@action("/jobs/{job_id:str}/edit", uses="AdminService/RedriveJobs")
async def redrive_edited(request: PageRequest, job_id: PathId) -> Html:
    """Redrive a finished job with another payload."""
    form = request.fields
    try:
        delay = delay_in(form)
        await request.cases.payload_edits.redrive(
            request.caller, job_id, form.raw("payload"), delay=delay, reason=form.text("reason")
        )
    except InvalidInput as error:
        job = await request.cases.jobs.get(request.caller, job_id, payload=True)
        body = body_of(job.payload, request.cases.redaction, whole=True)
        return _edit_form(
            request, job_id, topic=job.topic, state=job.state.label, body=body, text=form.raw("payload"), error=error
        )
    return request.done("Redriven with the edited payload.", to=f"{PREFIX}/jobs/{job_id}", changed="jobs")


def _edit_form(
    request: PageRequest,
    job_id: UUID,
    *,
    topic: str,
    state: str,
    body: Body,
    text: str,
    error: HeadgateError | None = None,
) -> Html:
    values: dict[str, Any] = {
        "delay": request.fields.text("delay"),
        "reason": request.fields.text("reason"),
    }
    return request.render(
        "jobs/edit.html",
        status_code=200 if error is None else 400,
        job_id=job_id,
        topic=topic,
        state_name=state,
        body=body,
        text=text,
        values=values,
        error=error,
        editable=body.kind in ("json", "text", "empty"),
    )
