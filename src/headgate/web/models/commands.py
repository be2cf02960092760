"""What a page shows, as commands: `headgate …` and `curl …`, ready to paste into a shell."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

TOKEN: Final = "$HEADGATE_TOKEN"  # noqa: S105 - the name of a variable


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """The same request for the command line and for HTTP."""

    headgate: str
    curl: str


def get_job(base: str, job_id: str) -> Commands:
    """Read a job."""
    query = urlencode({"with_payload": "true", "with_result": "true", "with_events": "true"})
    return Commands(headgate=f"headgate job get {job_id} --full", curl=_get(base, f"/v1/jobs/{job_id}?{query}"))


def job_logs(base: str, job_id: str) -> Commands:
    """Read the log of a job."""
    return Commands(headgate=f"headgate job logs {job_id}", curl=_get(base, f"/v1/jobs/{job_id}/logs"))


def redrive_job(base: str, job_id: str) -> Commands:
    """Redrive a job."""
    return Commands(headgate=f"headgate job redrive {job_id}", curl=_post(base, f"/v1/jobs/{job_id}/redrive", {}))


def submit_job(base: str, topic: str, payload: object | None) -> Commands:
    """Submit a job like this one; `payload` None: it is not JSON, and left out."""
    body: dict[str, object] = {"topic": topic} if payload is None else {"topic": topic, "payload": payload}
    words = ["headgate", "submit", topic]
    if payload is not None:
        words.append(json.dumps(payload, ensure_ascii=False))
    return Commands(headgate=shlex.join(words), curl=_post(base, "/v1/jobs", body))


def list_jobs(base: str, filter_: str, *, oldest: bool) -> Commands:
    """List jobs."""
    words = ["headgate", "job", "list"]
    if filter_:
        words += ["--filter", filter_]
    if oldest:
        words.append("--oldest")
    query = {"filter": filter_} if filter_ else {}
    if oldest:
        query["oldest_first"] = "true"
    encoded = urlencode(query, quote_via=quote)
    return Commands(headgate=shlex.join(words), curl=_get(base, f"/v1/jobs?{encoded}" if encoded else "/v1/jobs"))


def export_jobs(filter_: str) -> Commands:
    """Export jobs. There is no single request for it over HTTP."""
    words = ["headgate", "export", *(["--filter", filter_] if filter_ else []), "--file", "jobs.ndjson"]
    return Commands(headgate=shlex.join(words), curl="")


def start_bulk(base: str, verb: str, filter_: str, options: dict[str, object]) -> Commands:
    """Start a bulk operation."""
    words = ["headgate", "bulk", "start", verb, "--filter", filter_]
    for name, value in options.items():
        flag = f"--{name.removesuffix('_ms').replace('_', '-')}"
        words += [flag, f"{value}ms" if name.endswith("_ms") else str(value)]
    body = {"verb": verb, "filter": filter_, **options}
    return Commands(headgate=shlex.join(words), curl=_post(base, "/v1/bulk", body))


def _get(base: str, path: str) -> str:
    return f'curl -H "Authorization: Bearer {TOKEN}" {shlex.quote(base + path)}'


def _post(base: str, path: str, body: dict[str, object]) -> str:
    text = shlex.quote(json.dumps(body, ensure_ascii=False))
    return (
        f'curl -X POST -H "Authorization: Bearer {TOKEN}" -H "Content-Type: application/json" '
        f"{shlex.quote(base + path)} -d {text}"
    )
