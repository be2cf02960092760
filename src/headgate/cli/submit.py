"""`headgate submit TOPIC [PAYLOAD]`: submit one job."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

from headgate.cli import values
from headgate.cli.connection import with_client
from headgate.cli.options import DEFAULT_SERVER, MaxAttempts, Output, Payload, Priority, Raw, Server, Tags
from headgate.cli.output import Columns, as_json, for_people, print_list, print_one
from headgate.cli.unhandled import unhandled_line
from headgate.domain.errors import HeadgateError, InvalidInput, not_both
from headgate.domain.ids import JobId
from headgate.domain.validation import parse_priority
from headgate.sdk import Forbidden, Headgate, JobHandle, JobOptions, ResultTimeout, Unique

IDS: Final[Columns[JobId]] = {"ID": str}


def submit_command(
    topic: Annotated[str, Parameter(help="Topic of the job.")],
    payload: Payload = "",
    *,
    raw: Raw = False,
    priority: Priority | None = None,
    delay: Annotated[str | None, Parameter(help="Delay before the job is due: 30s, 5m, 2h, 1d.")] = None,
    at: Annotated[str | None, Parameter(help="Time at which the job is due: 2026-12-24T18:00:00Z.")] = None,
    deadline: Annotated[
        str | None,
        Parameter(help="The job is not started, and is stopped, after this time: a duration (30s, 5m, 2h) or a time."),
    ] = None,
    max_attempts: MaxAttempts = None,
    key: Annotated[
        str | None, Parameter(help="Idempotency key: submits with the same key on a topic are the same job.")
    ] = None,
    key_window: Annotated[
        str | None, Parameter(help="How long the idempotency key is remembered. Default: 24h.")
    ] = None,
    unique: Annotated[str | None, Parameter(help="Unique key: at most one live job of the topic has it.")] = None,
    on_conflict: Annotated[
        Literal["keep", "replace", "reschedule"],
        Parameter(
            help="When a live job has the unique key: keep it, replace its payload and options, or reschedule it."
        ),
    ] = "keep",
    debounce_max: Annotated[
        str | None, Parameter(help="Maximum time by which repeated submits can postpone the job.")
    ] = None,
    depends_on: Annotated[
        str | None, Parameter(help="Ids of parent jobs to wait for, or their first digits, separated by commas.")
    ] = None,
    needs: Annotated[
        Literal["succeeded", "ended"], Parameter(help="Run when all parents have succeeded, or when all have ended.")
    ] = "succeeded",
    on_parent_failure: Annotated[
        Literal["cancel", "ignore", "block"],
        Parameter(help="When a parent fails: cancel this job, ignore it, or block until the parent is redriven."),
    ] = "cancel",
    batch: Annotated[str | None, Parameter(help="Id of an open batch to add the job to, or its first digits.")] = None,
    tags: Tags | None = None,
    header: Annotated[
        list[str] | None, Parameter(help="Header of the job, NAME=VALUE. Can be given several times.", negative=())
    ] = None,
    limit_key: Annotated[
        str | None, Parameter(help="Key for the limits, order and fairness of the topic: a customer, an account.")
    ] = None,
    file: Annotated[
        str, Parameter(name=("--file", "-f"), help="Submit a job for each line of a file, its payload; `-`: of stdin.")
    ] = "",
    wait: Annotated[str | None, Parameter(help="Wait this long for the result, and print it as it is.")] = None,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Submit one job, or those of a file, and print the ids."""
    options: JobOptions = {}
    if priority is not None:
        options["priority"] = parse_priority(priority)
    if delay is not None:
        options["delay"] = values.duration(delay, field="--delay")
    if at is not None:
        options["run_at"] = values.timestamp(at, field="--at")
    if deadline is not None:
        options["deadline"] = values.duration_or_timestamp(deadline, field="--deadline")
    if max_attempts is not None:
        options["max_attempts"] = max_attempts
    if key is not None:
        options["key"] = key
    if key_window is not None:
        options["key_window"] = values.duration(key_window, field="--key-window")
    if unique is not None:
        longest = None if debounce_max is None else values.duration(debounce_max, field="--debounce-max")
        options["unique"] = Unique(key=unique, on_conflict=on_conflict, debounce_max=longest)
    elif on_conflict != "keep" or debounce_max is not None:
        raise InvalidInput("--unique", "is required by --on-conflict and --debounce-max")
    if depends_on is not None:
        options["needs"], options["on_parent_failure"] = needs, on_parent_failure
    if tags is not None:
        options["tags"] = [tag.strip() for tag in tags.split(",")]
    if header:
        options["headers"] = values.headers(header, field="--header")
    if limit_key is not None:
        options["limit_key"] = limit_key
    wait_seconds = 0.0 if wait is None else values.duration(wait, field="--wait").total_seconds()
    if file:
        _check_many(payload, key=key, unique=unique, wait=wait)
    body = b"" if file else values.payload(payload, raw=raw)
    bodies = values.payload_lines(file, raw=raw) if file else []

    async def act(hg: Headgate) -> None:
        if depends_on is not None:
            options["depends_on"] = [await _id(hg, "job", one, "--depends-on") for one in depends_on.split(",")]
        if batch is not None:
            options["batch"] = await _id(hg, "batch", batch, "--batch")
        if file:
            handles = await hg.submit_many(topic, bodies, **options)
            print_list([one.id for one in handles], output, IDS, name=str, empty="no lines", fields=_id_fields)
            return
        handle = await hg.submit(topic, body, **options)
        for_programs = output in ("json", "ndjson", "yaml")
        if not for_programs:
            print(handle.id, flush=True)
        fields: dict[str, object] = {"id": handle.id, "created": handle.created}
        failed: HeadgateError | None = None
        if wait_seconds:
            try:
                fields["result"] = await handle.result(wait_seconds)
            except HeadgateError as error:
                failed = error
        if for_programs:
            print_one(fields | {"state": await _state(handle)}, output, lambda: ())
        elif "result" in fields and for_people(output):
            print(as_json(fields["result"]))
        if isinstance(failed, ResultTimeout) and (line := await unhandled_line(hg, topic)):
            failed.add_note(line)
        if failed is not None:
            raise failed

    with_client(server, act)


async def _id(hg: Headgate, kind: str, text: str, option: str) -> JobId:
    """The whole id; an error about its form names the option."""
    try:
        return await hg.admin.full_id(kind, text.strip())
    except InvalidInput as error:
        if type(error) is not InvalidInput:  # several ids begin with the digits: the text lists them
            raise
        raise InvalidInput(option, error.problem, hint=error.hint) from None


def _check_many(payload: str, **single: object) -> None:
    """Raise InvalidInput for what belongs to one job."""
    if payload:
        raise not_both("--file", "a payload")
    if given := [f"--{name}" for name, value in single.items() if value is not None]:
        raise InvalidInput(given[0], "is for one job, and cannot be given together with --file")


def _id_fields(job_id: JobId) -> dict[str, object]:
    return {"id": job_id}


async def _state(handle: JobHandle[Any]) -> str | None:
    """The state of the job; None if the token does not allow to read it."""
    try:
        return (await handle.info()).state
    except Forbidden:
        return None
