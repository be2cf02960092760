"""Everything that reads a stranger's text or bytes, as one function each: it may refuse by an error of ours, or accept.

Anything else that escapes, and anything that takes long, is a fault. Run by Hypothesis in the tests, by atheris in
`make fuzz`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from headgate.api.grpc import submit_codec, worker_codec
from headgate.api.grpc.methods import Unreadable, reader_of
from headgate.cli import values
from headgate.cli.admin import _end
from headgate.control.auth import parse_tokens
from headgate.control.permissions import RULES
from headgate.domain.cron import check_zone, next_occurrence, parse_cron
from headgate.domain.errors import HeadgateError
from headgate.domain.filter_parser import parse
from headgate.domain.ids import new_job_id, parse_job_id
from headgate.domain.progress import progress_values
from headgate.domain.rate_limits import parse_rate
from headgate.domain.topic_values import policy_of
from headgate.domain.validation import parse_priority
from headgate.ops.config_file import parse_file
from headgate.ops.configuration import parsed, read_configuration
from headgate.ops.settings import BY_NAME
from headgate.sdk.addresses import addresses_of
from headgate.sdk.arguments import Arguments
from headgate.sdk.codec import decode as decode_payload
from headgate.sdk.codec import decoder_of
from headgate.store.connect import describe
from headgate.store.listing import read_cursor
from headgate.wire import producer_pb2, worker_pb2

NOON: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECONDS: Final = 1.0
"""More than any of them may take on input of a few kilobytes, on a machine that is busy with something else."""


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")  # what a command line or the environment gives, surrogates and all


def cron(raw: bytes) -> None:
    expression, _, zone = _text(raw).partition("|")
    next_occurrence(parse_cron(expression), check_zone(zone or "UTC"), NOON)


def filters(raw: bytes) -> None:
    found = parse(_text(raw))
    assert parse(str(found)) == found, "what is written down must be read as the same"


def spans(raw: bytes) -> None:
    values.duration(_text(raw), field="--delay")


def moments(raw: bytes) -> None:
    values.timestamp(_text(raw), field="--at")


def ends(raw: bytes) -> None:
    _end(_text(raw))


def priorities(raw: bytes) -> None:
    parse_priority(_text(raw))


def rates(raw: bytes) -> None:
    parse_rate(_text(raw), field="--rate")


def policies(raw: bytes) -> None:
    policy_of(_text(raw))


def payload_texts(raw: bytes) -> None:
    text = _text(raw)
    if not text.startswith(("@", "-")):
        values.payload(text)


def job_ids(raw: bytes) -> None:
    parse_job_id(_text(raw))


def cursors(raw: bytes) -> None:
    read_cursor(_text(raw), b"digest")


_READ_WORKER = reader_of(worker_pb2.WorkerFrame, RULES["/headgate.v1.WorkerService/Work"])
_READ_PRODUCER = reader_of(producer_pb2.ProducerFrame, RULES["/headgate.v1.ProducerService/Produce"])


def worker_frames(raw: bytes) -> None:
    frame = _READ_WORKER(raw)
    if isinstance(frame, Unreadable):
        return
    worker_codec.check_held(frame.beat.held, field="held")
    worker_codec.check_parallel(frame.outcomes.ids, frame.outcomes.epochs, field="ids")
    worker_codec.bad_completions(frame.outcomes)
    for outcome in frame.outcomes.others:
        _quietly(worker_codec.outcome_of, outcome)
    for word in frame.beat.progress:
        _quietly(lambda one: progress_values(one.done, one.total, one.message, at_us=0), word.progress)


def producer_frames(raw: bytes) -> None:
    frame = _READ_PRODUCER(raw)
    if isinstance(frame, Unreadable):
        return
    for job in frame.jobs:
        _quietly(
            submit_codec.submission_of,
            job,
            tenant="acme",
            sees=None,
            make_id=lambda: new_job_id(now_ms=1, random_bits=b"x" * 10),
        )


def _example(
    to: str, count: int = 1, when: datetime = NOON, span: timedelta = timedelta(0), **rest: list[float]
) -> None:
    """A handler with a bit of everything."""


_ARGUMENTS = Arguments(_example, name="example")
_RESULT = decoder_of(dict[str, list[int | str | None]])


def arguments(raw: bytes) -> None:
    decode_payload(raw, _ARGUMENTS._decoder, what="example")


def results(raw: bytes) -> None:
    decode_payload(raw, _RESULT, what="result")


def addresses(raw: bytes) -> None:
    addresses_of(_text(raw))


def settings(raw: bytes) -> None:
    url, _, data = _text(raw).partition("|")
    environ = {"HEADGATE_DATABASE_URL": url, "HEADGATE_DATA": data}
    found = read_configuration(flags={}, environ=environ, folder=Path("/nowhere"))
    describe(found.database_url or "")


def config_files(raw: bytes) -> None:
    for name, value in parse_file(_text(raw), source="headgate.toml").items():
        parsed(BY_NAME[name], value.text, field=value.where)


def database_urls(raw: bytes) -> None:
    describe(_text(raw))


def tokens(raw: bytes) -> None:
    parse_tokens(_text(raw), source="tokens.json")


def _quietly(read: Callable[..., object], *args: object, **named: Any) -> None:
    try:
        read(*args, **named)
    except HeadgateError:
        return


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    read.__name__: read
    for read in (
        *(cron, filters, spans, moments, ends, priorities, rates, policies, payload_texts, job_ids, cursors),
        *(worker_frames, producer_frames, arguments, results, addresses, settings, config_files, database_urls),
        tokens,
    )
}
SEEDS: Final[dict[str, list[bytes]]] = {
    "cron": [b"*/5 0-12 1,15 jan-mar mon", b"@daily|Europe/Berlin", b"0 0 30 2 *", b"60 * * * *"],
    "filters": [b'state:dead,cancelled -topic:mail* created:>2h error:"timed out" args.user.id:7', b"priority:>=3"],
    "spans": [b"30s", b"1.5h", b"9999999999d"],
    "moments": [b"2026-12-24T18:00:00+01:00", b"2026-12-24", b"0001-01-01T00:00:00Z"],
    "ends": [b"30m", b"2026-12-24T18:00:00Z", b"99999999999d"],
    "priorities": [b"high", b"-12", b"+-1", "²".encode()],
    "rates": [b"100/1s:20"],
    "policies": [b"exponential_full_jitter:1s:10m", b"fixed:30s"],
    "payload_texts": [b'{"a": [1, 2.5, null, "x"]}', b"[" * 3_000],
    "job_ids": [b"01890a5d-ac96-774b-bcce-b302099a8057"],
    "cursors": [b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"],
    "arguments": [b'{"to": "x", "count": 3, "when": "2026-01-01T00:00:00Z", "span": "PT5S"}', b'{"to": 1}'],
    "results": [b'{"a": [1, "x", null]}', b"[" * 5_000],
    "addresses": [b"https://host:7070,[::1]:80", b"host", b"http://[::ffff:1.2.3.4]:99999"],
    "settings": [b"postgresql://user:pw@host:5432/db?host=x|/tmp/data", b"postgres://u|~?", b"postgres://u|~\0?"],
    "config_files": [b'[server]\nlease = "5m"\nport = 70\n[payload]\nredact = ["a"]\n', b'server.lease = """\n1"""'],
    "database_urls": [b"postgresql://u:p%40@[::1]:5432/d%00b?host=a&port=b", b"postgres://["],
    "tokens": [b'{"0123456789abcdef": {"tenant": "acme", "scopes": ["read"], "topics": ["mail"]}}'],
}


def run(name: str, raw: bytes) -> None:
    """One reader, one input; raises what a fault raises."""
    began = time.perf_counter()
    try:
        TARGETS[name](raw)
    except HeadgateError as error:
        str(error).encode()  # it can be logged and sent, whatever was refused
    took = time.perf_counter() - began
    assert took < SECONDS, f"{name} took {took:.1f} s for {len(raw)} bytes"
