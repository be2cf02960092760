"""Jobs as lines of a file: what is written, what is masked, and what an import refuses, with the line and the field."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest

from headgate.cli import export, job_import, main
from headgate.cli.job_import import Line, _lines
from headgate.domain.errors import InvalidInput, NotFound, Overloaded
from headgate.domain.job_export import ExportedJob
from headgate.domain.redaction import MASK, Redaction

NOON = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)
ID = UUID("0190a3b2-7c4d-7abc-8def-0123456789ab")
JOB = ExportedJob(
    id=ID,
    topic="mail",
    state="pending",
    priority=5,
    attempt=0,
    max_attempts=8,
    created_at=NOON,
    run_at=NOON,
    finished_at=None,
    deadline=None,
    key="",
    unique_key="",
    headers={},
    tags=(),
    waits_for=(),
    last_error="",
    payload=b'{"to": "ana",  "n": 1.0}',
    result=b"",
)
SECRET = replace(
    JOB,
    payload=b'{"user": {"password": "x"}, "cards": [{"cvv": "1"}]}',
    headers={"authorization": "Bearer x", "trace": "1"},
    last_error="password=x",
)


def read(text: str) -> list[Line]:
    return [line for _, line in _lines(io.BytesIO(text.encode()), "jobs.ndjson")]


def refusal(text: str) -> str:
    with pytest.raises(InvalidInput) as error:
        read(text)
    return str(error.value)


def test_a_payload_comes_back_byte_for_byte() -> None:
    for payload in (
        JOB.payload,
        b"null",
        b'{"a":\n1}',
        b'{"a":\r1}',
        b"\xff\x00",
        b"",
        "•••".encode(),
        b'"\\u00e9"',
        b"not json",
    ):
        text = replace(JOB, payload=payload).line(Redaction())
        assert text.splitlines() == [text], "one line, whatever reads it"
        (line,) = read(text + "\n")
        assert job_import._payload(line) == payload
        assert (line.id, line.topic, line.priority, line.max_attempts) == (ID, "mail", 5, 8)


def test_the_time_at_which_a_job_is_due_is_part_of_jobs_that_wait_for_it() -> None:
    assert "run_at" not in json.loads(JOB.line(None))
    for state in ("scheduled", "retrying", "blocked"):
        assert json.loads(replace(JOB, state=state).line(None))["run_at"] == "2026-11-18T12:00:00Z"


def test_what_became_of_a_job_is_in_its_line() -> None:
    ended = replace(JOB, state="dead", attempt=3, finished_at=NOON, last_error="E: it broke", result=b"[1]")
    line = json.loads(ended.line(Redaction()))
    assert {name: line[name] for name in ("state", "attempt", "created_at", "finished_at", "last_error", "result")} == {
        "state": "dead",
        "attempt": 3,
        "created_at": "2026-11-18T12:00:00Z",
        "finished_at": "2026-11-18T12:00:00Z",
        "last_error": "E: it broke",
        "result": [1],
    }
    assert not {"attempt", "finished_at", "last_error", "result"} & json.loads(JOB.line(None)).keys()


def test_secrets_are_masked_and_named_unless_asked_otherwise() -> None:
    shown = json.loads(SECRET.line(Redaction()))
    assert shown["payload"] == {"user": {"password": MASK}, "cards": [{"cvv": MASK}]}
    assert shown["headers"] == {"authorization": MASK, "trace": "1"}
    assert shown["masked"] == ["headers.authorization", "payload.user.password", "payload.cards[0].cvv"]
    assert '"x"' not in SECRET.line(Redaction())
    assert shown["last_error"] == f"password={MASK}"
    assert "password=hunter2" not in replace(JOB, payload=b"password=hunter2").line(Redaction())
    binary = json.loads(replace(JOB, payload=b"\xff password=hunter2").line(Redaction()))
    assert (binary["payload"], binary["masked"]) == (MASK, ["payload"])
    # A result is not imported: what is masked in it is not missing.
    ended = json.loads(replace(JOB, result=b'{"password": "x"}').line(Redaction()))
    assert (ended["result"], ended["masked"]) == ({"password": MASK}, [])
    plain = json.loads(SECRET.line(None))
    assert (plain["payload"]["user"]["password"], plain["masked"]) == ("x", [])


def test_masked_values_are_refused_with_line_and_field() -> None:
    text = JOB.line(Redaction()) + "\n\n" + SECRET.line(Redaction()) + "\n"
    assert refusal(text) == (
        "jobs.ndjson line 3: headers.authorization: is masked, and 2 more: its value is not in the file; "
        "export with --reveal, or write the value and remove its name from `masked`"
    )
    # A line without the list was not written by an export; one with an empty list means what it contains.
    typed = json.dumps({"topic": "mail", "payload": {"list": [1, MASK]}})
    assert "line 1: payload.list[1]: is masked" in refusal(typed)
    assert "line 1: headers.a: is masked" in refusal(json.dumps({"topic": "mail", "headers": {"a": MASK}}))
    assert read(json.dumps({"topic": "mail", "payload": {"list": [1, MASK]}, "masked": []}))
    assert read(SECRET.line(None))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"topic":"a"}\n{"topic":1}', "jobs.ndjson line 2: topic: expected `str`, got `int`"),
        ('{"id":"nope","topic":"a"}', "jobs.ndjson line 1: id: invalid UUID"),
        ('{"topic":"a","tags":["x",2]}', "jobs.ndjson line 1: tags[1]: expected `str`, got `int`"),
        ('{"topic":"a","colour":1}', "jobs.ndjson line 1: object contains unknown field `colour`"),
        ("{}", "jobs.ndjson line 1: object missing required field `topic`"),
        ('{"topic":', "jobs.ndjson line 1: is not JSON (input data was truncated)"),
        ('{"topic":"a","payload_base64":"?"}', "jobs.ndjson line 1: payload_base64: is not base64"),
        (
            '{"topic":"a","payload":1,"payload_base64":"MQ=="}',
            "jobs.ndjson line 1: payload_base64: cannot be given together with payload",
        ),
    ],
)
def test_an_error_names_the_line_and_the_field(text: str, expected: str) -> None:
    assert refusal(text) == expected


def test_a_line_without_an_end_is_not_read_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_import, "LINE_MAX_BYTES", 100)
    assert refusal('{"topic":"' + "a" * 200) == "jobs.ndjson line 1: is longer than 100 bytes"
    longest = json.dumps({"topic": "a" * 86}) + "\n"
    assert len(longest) == 100
    assert len(read(longest * 3)) == 3


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing" / "jobs.ndjson"
    assert main(["export", "--file", str(missing)]) == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


class Server:
    """Stands in for a server: has jobs to be listed, and answers submits as it is told."""

    def __init__(self, jobs: int = 0, answers: Sequence[object] = ()) -> None:
        self.admin, self.listed, self._jobs = self, 0, jobs
        self.answers, self.submitted = list(answers), list[dict[str, object]]()

    async def jobs_matching(self, _filter: str, *, oldest_first: bool) -> AsyncIterator[object]:
        assert oldest_first
        for number in range(self._jobs):
            self.listed += 1
            yield SimpleNamespace(id=number)

    async def get(self, job_id: int, *, payload: bool, result: bool) -> object:
        assert payload
        assert result
        if job_id < 0:
            raise NotFound("job", str(job_id))
        parents = [SimpleNamespace(id=n, met=met) for n, met in enumerate(("waiting", "fulfilled", "waiting"))]
        return SimpleNamespace(parents=parents, raw_result=b"", **dict.fromkeys(EXPORTED))

    async def submit(self, topic: str, payload: bytes, **options: object) -> object:
        self.submitted.append({"topic": topic, "payload": payload, **options})
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return SimpleNamespace(created=answer)


EXPORTED = {field.name for field in fields(ExportedJob)} - {"result", "waits_for"}


@pytest.mark.parametrize(
    ("jobs", "limit", "expected"),
    [(0, 0, []), (16, 0, [16]), (17, 0, [16, 1]), (40, 20, [16, 4]), (40, 16, [16]), (40, 3, [3]), (2, 3, [2])],
)
async def test_a_limit_ends_an_export_and_no_more_is_read(jobs: int, limit: int, expected: list[int]) -> None:
    server = Server(jobs)
    assert [len(page) async for page in export._pages(server, "", limit)] == expected
    assert server.listed == sum(expected)


async def test_a_job_that_was_removed_meanwhile_is_left_out_and_parents_that_have_ended_are_not_named() -> None:
    assert await export._read(Server(), SimpleNamespace(id=-1)) is None
    found = await export._read(Server(), SimpleNamespace(id=1))
    assert found is not None
    assert found.waits_for == [0, 2]


async def test_of_lines_that_are_refused_the_first_is_named_and_the_others_are_counted() -> None:
    answers = [True, False, Overloaded("full", retry_after_ms=1), InvalidInput("tags", "are wrong", hint="few"), True]
    some, done = list(enumerate(read('{"topic":"a"}\n' * 5), start=7)), job_import.Imported()
    with pytest.raises(Overloaded, match="jobs line 9: full"):
        await job_import._submit(Server(answers=answers), "jobs", some, done, dry_run=False)
    assert (done.created, done.existing) == (2, 1)
    with pytest.raises(InvalidInput) as refused:
        await job_import._submit(Server(answers=answers[3:4]), "jobs", some[:1], done, dry_run=False)
    assert str(refused.value) == "jobs line 7: tags: are wrong; few"


async def test_all_that_a_line_says_of_a_submit_is_passed_on() -> None:
    full = replace(
        JOB,
        state="scheduled",
        deadline=NOON,
        key="k",
        unique_key="u",
        headers={"a": "b"},
        tags=("x",),
        waits_for=(UUID(int=1),),
    )
    server = Server(answers=[True])
    await job_import._submit(server, "jobs", [(1, read(full.line(None))[0])], job_import.Imported(), dry_run=False)
    assert server.submitted == [
        {
            "topic": "mail",
            "payload": JOB.payload,
            "id": ID,
            "priority": 5,
            "max_attempts": 8,
            "run_at": NOON,
            "deadline": NOON,
            "key": "k",
            "unique": "u",
            "headers": {"a": "b"},
            "tags": ["x"],
            "depends_on": [UUID(int=1)],
        }
    ]


async def test_a_priority_of_0_is_passed_on_and_what_a_line_does_not_say_is_left_to_the_topic() -> None:
    """The topic may have another default, or another one by now."""
    lines, server = read(replace(JOB, priority=0).line(None) + '\n{"topic":"a"}'), Server(answers=[True, True])
    await job_import._submit(server, "jobs", list(enumerate(lines)), job_import.Imported(), dry_run=False)
    assert server.submitted[0]["priority"] == 0
    assert server.submitted[1] == {"topic": "a", "payload": b""}


@pytest.mark.parametrize(
    ("answers", "done"), [([True], "1 imported"), ([False], "0 imported, 1 existed already"), ([], "")]
)
def test_an_import_that_stops_says_what_it_has_done_before(
    answers: list[bool], done: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server(answers=[*answers, InvalidInput("tags", "are wrong")])
    monkeypatch.setattr(job_import, "with_client", lambda _, use: asyncio.run(use(server)))
    file = tmp_path / "jobs.ndjson"
    file.write_text('{"topic":"a"}\n' * len(server.answers))
    assert main(["import", str(file)]) == 2
    _, *notes = capsys.readouterr().err.splitlines()
    assert notes == ([f"error: {done} before that; importing the file again is safe"] if done else [])


class Exporting(Server):
    """Has these dead jobs; one below 0 is removed before it is read."""

    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self._numbers = numbers

    async def jobs_matching(self, _filter: str, *, oldest_first: bool) -> AsyncIterator[object]:
        for number in self._numbers:
            yield SimpleNamespace(id=number)

    async def get(self, job_id: int, *, payload: bool, result: bool) -> object:
        if job_id < 0:
            raise NotFound("job", str(job_id))
        ended = replace(JOB, id=UUID(int=job_id), state="dead", attempt=8, finished_at=NOON, last_error="E: no")
        return SimpleNamespace(parents=(), raw_result=b"[1]", **{name: getattr(ended, name) for name in EXPORTED})


def test_an_export_has_what_became_of_each_job_and_continues_behind_one_that_was_removed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export, "with_client", lambda _, use: asyncio.run(use(Exporting(1, -2, 3))))
    assert main(["export"]) == 0
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert [(one["id"], one["attempt"], one["last_error"], one["result"]) for one in lines] == [
        (str(UUID(int=number)), 8, "E: no", [1]) for number in (1, 3)
    ]
    assert printed.err == "2 jobs exported\n"
