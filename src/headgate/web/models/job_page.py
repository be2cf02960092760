"""The page of one job: time line, attempts, payload, result, related jobs, and which verbs apply."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from headgate.api.http.codec import job_info
from headgate.domain.attempts import Attempt, Span, attempts_of, timeline_of
from headgate.domain.bulk import Verb
from headgate.domain.dependencies import Met
from headgate.domain.filters import Field, Glob, JobFilter, Term
from headgate.domain.job_logs import LogPage, StoredLine
from headgate.domain.redaction import Redaction
from headgate.domain.states import State
from headgate.domain.timestamps import from_unix_us
from headgate.domain.views import JobEvent, JobView
from headgate.web.models.bodies import NOT_JSON, Body, body_of, decoded
from headgate.web.models.tracebacks import Part, folded

NO_LOG: Final = LogPage(lines=())
BAR_WIDTH: Final = 1_000
BAR_MIN: Final = 12
"""The least width of a stretch: one that took a millisecond of an hour is still seen."""
SPANS_MAX: Final = 60
RELATIONS_MAX: Final = 20
STALE_AFTER: Final = timedelta(seconds=60)
"""A report of progress that is older is shown as old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A stretch of the time line, and where it is drawn."""

    span: Span
    x: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An attempt with its error and its log masked, and its traceback in parts.

    `same_as`: the newer attempt with the same traceback.
    """

    attempt: Attempt
    error: str
    trace: Sequence[Part]
    log: Sequence[StoredLine] = ()
    same_as: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressView:
    """What the handler has reported. `total` 0: unknown."""

    done: int
    total: int
    message: str
    at: datetime
    stale: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """All that the page shows."""

    job: JobView
    now: datetime
    bars: Sequence[Bar]
    left_out: int
    attempts: Sequence[Shown]
    payload: Body
    result: Body
    progress: ProgressView | None
    events: Sequence[JobEvent]
    raw: Any
    error: str
    metadata: Body
    error_masked: bool = False
    before: int = 0  # only the history before this event is shown; 0: the newest
    has_log: bool = False  # a handler logged something, perhaps in an attempt that is not shown
    older_lines: bool = False  # of its log, only the newest lines were read

    def applies(self, verb: str) -> bool:
        """Whether a verb changes a job in this state."""
        return self.job.state in Verb[verb.upper()].reaches

    @property
    def masked(self) -> bool:
        """Whether a value of its payload, its result or its last error is masked."""
        return self.payload.masked or self.result.masked or self.error_masked

    @property
    def tags(self) -> list[tuple[str, str]]:
        """Each tag, and the filter for jobs that have it."""
        return [(tag, str(Term(field=Field.TAG, values=(tag,)))) for tag in self.job.tags]

    @property
    def keys(self) -> list[tuple[str, str]]:
        """Its keys: a title, and the key."""
        named = (("Idempotency key", self.job.key), ("Unique key", self.job.dependencies.unique_key))
        return [(title, key) for title, key in named if key]

    @property
    def same_unique_key(self) -> str:
        """The filter for the jobs of the topic with its unique key, if it has one. An idempotency key has one job."""
        if not (key := self.job.dependencies.unique_key):
            return ""
        topic = Term(field=Field.TOPIC, values=(Glob((self.job.topic,)),))
        return str(JobFilter((topic, Term(field=Field.UNIQUE, values=(key,)))))

    @property
    def relations(self) -> list[tuple[str, int, list[tuple[UUID, str]]]]:
        """Parents and children: how many there are, and some of them with whether their dependency is fulfilled."""
        known = self.job.dependencies
        return [
            (title, count, [(one.job_id, Met(one.met).name.lower()) for one in some[:RELATIONS_MAX]])
            for title, count, some in (
                ("Parents", known.parent_count, known.parents),
                ("Children", known.child_count, known.children),
            )
            if some
        ]

    @property
    def older(self) -> int:
        """The number of the oldest event shown, if there are older ones; else 0."""
        return self.job.events[0].no if self.job.older_events else 0

    @property
    def is_over(self) -> bool:
        """Whether nothing changes any more: the page need not look again."""
        return self.job.state.is_final


def job_page(job: JobView, redaction: Redaction, *, before: int = 0, log: LogPage = NO_LOG) -> JobPage:
    """The page of a job that was read with payload, result and events: all, or those before the one of a number."""
    now = job.read_at or job.created_at
    payload = body_of(job.payload, redaction)
    result = body_of(job.result, redaction)
    bars, left_out = ([], 0) if before else bars_of(timeline_of(job, now=now))
    past = replace(job, claimed_at=None) if before else job  # without the attempt of now
    error = redaction.masked_text(job.last_error or "")
    texts = {name: redaction.masked_text(value) for name, value in job.headers.items()}
    return JobPage(
        job=job,
        now=now,
        bars=bars,
        left_out=left_out,
        attempts=_shown(attempts_of(past), redaction, log.lines),
        payload=payload,
        result=result,
        progress=_progress(job, now, redaction),
        events=[_masked_event(event, redaction) for event in reversed(job.events)],
        raw=raw_of(job, redaction),
        error="" if job.state is State.COMPLETED else error,
        metadata=body_of(json.dumps(texts).encode(), redaction),
        error_masked=error != (job.last_error or ""),
        before=before,
        has_log=bool(log.lines),
        older_lines=log.more,
    )


def bars_of(spans: Sequence[Span]) -> tuple[list[Bar], int]:
    """The stretches as parts of a bar, each as wide as it was long, but never too narrow to be seen.

    Returns also how many of the oldest are left out of a very long history.
    """
    shown = spans[-SPANS_MAX:]
    whole = sum((span.duration for span in shown), timedelta(0)) / timedelta(milliseconds=1)
    spare = BAR_WIDTH - BAR_MIN * len(shown)
    bars, x = list[Bar](), 0.0
    for span in shown:
        part = span.duration / timedelta(milliseconds=1)
        width = BAR_MIN + (spare * part / whole if whole else spare / len(shown))
        bars.append(Bar(span=span, x=round(x, 2), width=round(width, 2)))
        x += width
    return bars, len(spans) - len(shown)


def _shown(attempts: Sequence[Attempt], redaction: Redaction, lines: Sequence[StoredLine]) -> list[Shown]:
    by_epoch: dict[int, list[StoredLine]] = {}
    for line in lines:
        shown = replace(line, text=redaction.masked_text(line.text), logger=redaction.masked_text(line.logger))
        by_epoch.setdefault(line.epoch, []).append(shown)
    seen: dict[str, int] = {}
    found = []
    for one in attempts:
        error = f"{one.error_type}: {one.error_message}" if one.error_type else one.error_message or one.reason
        first = seen.setdefault(one.traceback, one.number) if one.traceback else 0
        same = bool(one.traceback) and first != one.number
        found.append(
            Shown(
                attempt=replace(one, reason=redaction.masked_text(one.reason)),
                error=redaction.masked_text(error),
                trace=() if same else folded(redaction.masked_text(one.traceback)),
                log=by_epoch.get(one.epoch, ()),
                same_as=first if same else 0,
            )
        )
    return found


def _progress(job: JobView, now: datetime, redaction: Redaction) -> ProgressView | None:
    if not job.progress or job.state in (State.COMPLETED, State.CANCELLED):
        return None
    found = job_info(job).progress
    if found is None:
        return None
    at = from_unix_us(found.at_us)
    said = redaction.masked_text(found.message)
    return ProgressView(done=found.done, total=found.total, message=said, at=at, stale=now - at > STALE_AFTER)


def _masked_event(event: JobEvent, redaction: Redaction) -> JobEvent:
    mask = redaction.masked_text
    return replace(event, error_message=mask(event.error_message or ""), reason=mask(event.reason or ""))


def raw_of(job: JobView, redaction: Redaction) -> Any:
    """The job as the REST API has it, masked; a large payload or result is left out."""
    bare = job_info(replace(job, payload=None, result=None, last_error=redaction.masked_text(job.last_error or "")))
    for event in bare.events:
        event.error_message = redaction.masked_text(event.error_message)
        event.error_trace = redaction.masked_text(event.error_trace)
        event.reason = redaction.masked_text(event.reason)
    if bare.progress is not None:
        bare.progress.message = redaction.masked_text(bare.progress.message)
    bare.headers = redaction.masked_headers(bare.headers)
    found: dict[str, Any] = msgspec.to_builtins(bare)
    for name, body in (("payload", job.payload), ("result", job.result)):
        shown = body_of(body, redaction)
        if shown.kind == "json":
            found[name] = redaction.masked(decoded(body or b""))
        elif shown.kind != "empty":
            found[name] = f"({shown.kind}, {shown.size} bytes)"
    return found


def like_payload(body: bytes | None, redaction: Redaction) -> object | None:
    """The payload for a command that submits a job like this one; None if it is not JSON, or masked."""
    value = decoded(body) if body else NOT_JSON
    return None if value is NOT_JSON or redaction.masked(value) != value else value
