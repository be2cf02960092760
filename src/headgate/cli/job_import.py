"""`headgate import`: submit the jobs of a file that `headgate export` has written."""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, BinaryIO, Final
from uuid import UUID

import msgspec
from cyclopts import Parameter

from headgate.cli.connection import with_client
from headgate.cli.options import DEFAULT_SERVER, Output, Server
from headgate.cli.output import print_one
from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.domain.job_export import FINISHED, masks_in
from headgate.domain.validation import shown
from headgate.sdk import Headgate, JobOptions

AT_ONCE: Final = 64
"""Lines that are submitted together, and are in memory."""
LINE_MAX_BYTES: Final = 8 * 1024 * 1024
"""A payload of the maximum size fits, in base64 as well."""


class Line(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A job as it stands in a file. What only an export says is read, and not used."""

    topic: str
    id: UUID | None = None
    payload: msgspec.Raw = msgspec.Raw()
    payload_base64: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    run_at: datetime | None = None
    deadline: datetime | None = None
    key: str | None = None
    unique_key: str | None = None
    headers: dict[str, str] = {}
    tags: list[str] = []
    depends_on: list[UUID] = []
    masked: list[str] | None = None
    """None: no export has written the line, and a value that looks masked is refused."""
    state: str = ""
    attempt: int = 0
    created_at: datetime | None = None
    finished_at: datetime | None = None
    last_error: str = ""
    result: msgspec.Raw = msgspec.Raw()
    result_base64: str = ""


@dataclass(slots=True)
class Imported:
    """What has become of the lines so far."""

    created: int = 0
    existing: int = 0
    skipped: int = 0

    def text(self) -> str:
        """In words."""
        parts = [f"{self.created:,} imported"]
        if self.existing:
            parts.append(f"{self.existing:,} existed already")
        if self.skipped:
            parts.append(f"{self.skipped:,} had ended and were skipped (--finished submits them again)")
        return ", ".join(parts)


def import_command(
    file: Annotated[str, Parameter(help="A file of `headgate export`, or `-` for standard input.")],
    *,
    finished: Annotated[
        bool, Parameter(help="Also submit jobs that had ended when they were exported: they run again.")
    ] = False,
    dry_run: Annotated[bool, Parameter(help="Only check all lines; submit nothing.")] = False,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Submit the jobs of a file. Jobs keep their ids, so importing a file again submits nothing twice.

    Attempts, history, results and logs are not imported. Jobs with masked values are refused.
    """
    done = Imported()
    source = "standard input" if file in ("-", "@-") else file

    async def act(hg: Headgate) -> None:
        with ExitStack() as stack:
            some: list[tuple[int, Line]] = []
            for number, line in _lines(stack.enter_context(_opened(file)), source):
                if line.state in FINISHED and not finished:
                    done.skipped += 1
                    continue
                some.append((number, line))
                if len(some) == AT_ONCE:
                    await _submit(hg, source, some, done, dry_run=dry_run)
                    some = []
            await _submit(hg, source, some, done, dry_run=dry_run)

    try:
        with_client(server, act)
    except HeadgateError as error:
        if done.created or done.existing:
            error.add_note(f"{done.text()} before that; importing the file again is safe")
        raise
    if dry_run:
        text = f"{done.created:,} can be imported" + (f", {done.skipped:,} had ended" if done.skipped else "")
    else:
        text = done.text()
    print_one(done, output, lambda: [text], name=done.created)


async def _submit(hg: Headgate, source: str, some: list[tuple[int, Line]], done: Imported, *, dry_run: bool) -> None:
    """Submit these at once, and count them; raises for the first line that is refused."""
    if dry_run:
        done.created += len(some)
        return
    answers = await asyncio.gather(
        *(hg.submit(line.topic, _payload(line), **_options(line)) for _, line in some), return_exceptions=True
    )
    failed: BaseException | None = None
    for (number, _), answer in zip(some, answers, strict=True):
        if isinstance(answer, HeadgateError):
            failed = failed or _at(source, number, answer)
        elif isinstance(answer, BaseException):
            raise answer
        elif answer.created:
            done.created += 1
        else:
            done.existing += 1
    if failed is not None:
        raise failed


def _at(source: str, number: int, error: HeadgateError) -> HeadgateError:
    """The same error, with the line that it is about."""
    if isinstance(error, InvalidInput):
        return InvalidInput(f"{source} line {number}: {error.field}", error.problem, hint=error.hint)
    error.args = (f"{source} line {number}: {error}",)
    return error


def _options(line: Line) -> JobOptions:
    options: JobOptions = {}
    if line.id is not None:
        options["id"] = line.id
    if line.priority is not None:
        options["priority"] = line.priority
    if line.max_attempts is not None:
        options["max_attempts"] = line.max_attempts
    if line.run_at is not None:
        options["run_at"] = line.run_at
    if line.deadline is not None:
        options["deadline"] = line.deadline
    if line.key:
        options["key"] = line.key
    if line.unique_key:
        options["unique"] = line.unique_key
    if line.headers:
        options["headers"] = line.headers
    if line.tags:
        options["tags"] = line.tags
    if line.depends_on:
        options["depends_on"] = line.depends_on
    return options


def _payload(line: Line) -> bytes:
    return bytes(line.payload) if line.payload_base64 is None else b64decode(line.payload_base64)


def _lines(file: BinaryIO, source: str) -> Iterator[tuple[int, Line]]:
    """Each line with its number, read when it is needed. Raises InvalidInput with the number and the field."""
    number = 0
    while raw := file.readline(LINE_MAX_BYTES + 1):
        number += 1
        where = f"{source} line {number}"
        if len(raw) > LINE_MAX_BYTES:
            raise InvalidInput(where, f"is longer than {LINE_MAX_BYTES:,} bytes")
        if not raw.strip():
            continue
        try:
            line = msgspec.json.decode(raw, type=Line)
        except msgspec.ValidationError as error:
            problem, _, path = str(error).partition(" - at `$")
            field = path.rstrip("`").lstrip(".")
            raise InvalidInput(f"{where}: {field}" if field else where, _lowered(problem)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInput(where, f"is not JSON ({_lowered(str(error))})") from None
        _check(line, where)
        yield number, line


def _check(line: Line, where: str) -> None:
    """Raise InvalidInput for a body in two forms, one that is not base64, and for masked values."""
    if line.payload_base64 is not None:
        if bytes(line.payload):
            raise InvalidInput(f"{where}: payload_base64", "cannot be given together with payload")
        try:
            b64decode(line.payload_base64, validate=True)
        except (Base64Error, ValueError):
            raise InvalidInput(f"{where}: payload_base64", "is not base64") from None
    masked = line.masked
    if masked is None:
        payload = json.loads(bytes(line.payload)) if bytes(line.payload) else None
        masked = [*masks_in(payload, "payload"), *masks_in(line.headers, "headers")]
    if masked:
        more = f", and {len(masked) - 1} more" if len(masked) > 1 else ""
        raise InvalidInput(
            f"{where}: {masked[0]}",
            f"is masked{more}: its value is not in the file",
            hint="export with --reveal, or write the value and remove its name from `masked`",
        )


def _opened(name: str) -> BinaryIO:
    if name in ("-", "@-"):
        return sys.stdin.buffer
    try:
        return Path(name).open("rb")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a file name"
        raise InvalidInput("file", f"{shown(name)} cannot be read: {reason}") from None


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]
