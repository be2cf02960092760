"""Commands with several ids: the good ones are carried out and shown, each bad one is named; exit codes tell which."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from headgate.cli import main
from tests.support.database import Server
from tests.support.wire import Wire, served

UNKNOWN = ["01890000-0000-7000-8000-000000000000", "01890000-0000-7000-8000-000000000001"]


@pytest.fixture(scope="module")
def address(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(postgres, template, tmp_path_factory.mktemp("ids")) as (server, _):
        yield server.address


class Shell:
    """`headgate` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.topic = f"topic-{uuid4()}"

    def __call__(self, *arguments: str) -> tuple[int, list[str], list[str]]:
        code = main(list(arguments))
        printed = self._capsys.readouterr()
        return code, printed.out.splitlines(), printed.err.splitlines()

    def queued(self, number: int) -> list[str]:
        """New jobs that are not due for an hour."""
        made = [self("submit", self.topic, "{}", "--delay", "1h") for _ in range(number)]
        assert [code for code, _, _ in made] == [0] * number
        return [out[0] for _, out, _ in made]

    def state(self, job: str) -> str:
        code, out, _ = self("job", "get", job, "--output", "json")
        assert code == 0
        return str(json.loads("\n".join(out))["state"])


@pytest.fixture
def run(address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("HEADGATE_URL", address)
    monkeypatch.delenv("HEADGATE_TOKEN", raising=False)
    return Shell(capsys)


def absent(job: str) -> str:
    return f'error: no job "{job}"'


def test_all_good_is_0_with_a_line_for_each_in_the_order_given(run: Shell) -> None:
    first, second, third = run.queued(3)
    assert run("job", "cancel", third, first) == (0, [f"{third}  cancelled", f"{first}  cancelled"], [])
    assert run.state(second) == "scheduled"
    assert run("job", "redrive", first, third) == (0, [f"{first}  pending", f"{third}  pending"], [])
    told = [f"{first}  pending", f"{second}  scheduled", f"{third}  pending"]
    assert run("job", "reprioritise", first, second, third, "--priority", "7") == (0, told, [])


async def test_a_job_that_was_asked_to_stop_before_is_shown_as_before_and_is_no_failure(
    run: Shell, address: str
) -> None:
    async with Wire(address) as wire, wire.worker() as session:
        running, other = [str(UUID(bytes=raw)) for raw in await wire.submit_many(run.topic, [b"1", b"2"])]
        await session.ready(1, run.topic)
        await session.take(1)
        first = await asyncio.to_thread(run, "job", "cancel", running)
        again = await asyncio.to_thread(run, "job", "cancel", running, other)
    assert first == (0, [f"{running}  running"], [])
    assert again == (0, [f"{running}  running  (unchanged)", f"{other}  cancelled"], [])


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_unknown_id_among_good_ones_is_3_and_the_good_ones_are_done(run: Shell, place: int) -> None:
    jobs = run.queued(2)
    code, out, err = run("job", "cancel", *jobs[:place], UNKNOWN[0], *jobs[place:])
    assert (code, out, err) == (3, [f"{job}  cancelled" for job in jobs], [absent(UNKNOWN[0])])
    assert [run.state(job) for job in jobs] == ["cancelled", "cancelled"]


def test_a_job_in_the_wrong_state_among_good_ones_is_4_and_named(run: Shell) -> None:
    good, wrong, also = run.queued(3)
    assert run("job", "cancel", good, also)[0] == 0
    code, out, err = run("job", "discard", good, wrong, also)
    assert code == 4
    assert [line.split()[0] for line in out] == [good, also]
    assert len(err) == 1
    assert wrong in err[0]
    assert run("job", "get", good)[0] == 3
    assert run.state(wrong) == "scheduled"


def test_every_failure_is_named_and_the_first_decides_the_code(run: Shell) -> None:
    wrong, good = run.queued(2)
    assert run("job", "cancel", good)[0] == 0
    code, out, err = run("job", "discard", UNKNOWN[0], wrong, good, UNKNOWN[1])
    assert (code, [line.split()[0] for line in out], len(err)) == (3, [good], 3)
    assert (err[0], err[2]) == (absent(UNKNOWN[0]), absent(UNKNOWN[1]))
    assert wrong in err[1]
    code, out, err = run("job", "discard", wrong, UNKNOWN[0])
    assert (code, out, err[1:]) == (4, [], [absent(UNKNOWN[0])])
    assert wrong in err[0]


def test_all_unknown_is_3_and_nothing_is_printed(run: Shell) -> None:
    for verb in (["cancel"], ["redrive"], ["discard"], ["reprioritise", "--priority", "1"], ["move", "--to", "there"]):
        assert run("job", verb[0], *UNKNOWN, *verb[1:]) == (3, [], [absent(job) for job in UNKNOWN])


def test_ndjson_has_an_object_for_each_in_the_order_given(run: Shell) -> None:
    (good,) = run.queued(1)
    code, out, err = run("job", "reprioritise", UNKNOWN[0], good, UNKNOWN[1], "--priority", "7", "--output", "ndjson")
    assert (code, err) == (3, [absent(UNKNOWN[0]), absent(UNKNOWN[1])])
    told = [json.loads(line) for line in out]
    assert [(one["id"], one["changed"], one["state"], one["code"]) for one in told] == [
        (UNKNOWN[0], False, "", "not_found"),
        (good, True, "scheduled", ""),
        (UNKNOWN[1], False, "", "not_found"),
    ]


def test_a_list_of_ids_that_cannot_be_meant_is_2_and_nothing_is_done(run: Shell) -> None:
    (good,) = run.queued(1)
    for wrong, word in (([good, "not-an-id"], "not-an-id"), ([good, good], "twice"), ([], "")):
        code, out, err = run("job", "cancel", *wrong)
        assert (code, out, len(err)) == (2, [], 1), wrong
        assert word in err[0]
    assert run.state(good) == "scheduled"


def test_exported_jobs_are_imported_once_and_finished_ones_not_at_all(run: Shell, tmp_path: Path) -> None:
    later, pending, cancelled = run.queued(1)[0], *(run("submit", run.topic, '{"n": 1}')[1][0] for _ in range(2))
    assert run("job", "cancel", cancelled)[0] == 0
    file = tmp_path / "jobs.ndjson"
    code, out, err = run("export", "--filter", f"topic:{run.topic}", "--file", str(file))
    assert (code, out, err) == (0, [], ["3 jobs exported"])
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(one["id"], one["state"]) for one in lines] == [
        (later, "scheduled"),
        (pending, "pending"),
        (cancelled, "cancelled"),
    ]
    assert lines[1]["payload"] == {"n": 1}
    assert run("import", str(file))[1] == [
        "0 imported, 2 existed already, 1 had ended and were skipped (--finished submits them again)"
    ]
    # Elsewhere: the same jobs with other ids.
    other = tmp_path / "other.ndjson"
    fresh = {one["id"]: one["id"][:-4] + "ffff" for one in lines}
    other.write_text("".join(f"{json.dumps(one | {'id': fresh[one['id']]})}\n" for one in lines))
    assert run("import", str(other), "--dry-run")[1] == ["2 can be imported, 1 had ended"]
    code, out, _ = run("import", str(other), "-o", "json")
    assert (code, json.loads("\n".join(out))) == (0, {"created": 2, "existing": 0, "skipped": 1})
    assert [run.state(fresh[one]) for one in (later, pending)] == ["scheduled", "pending"]
    assert run("import", str(other), "--finished")[1] == ["1 imported, 2 existed already"]
    assert run.state(fresh[cancelled]) == "pending"


def test_an_import_stops_at_the_line_that_the_server_refuses(run: Shell, tmp_path: Path) -> None:
    (known,) = run.queued(1)
    file = tmp_path / "jobs.ndjson"
    file.write_text(
        f'{{"topic":"{run.topic}"}}\n\n{{"id":"{known}","topic":"{run.topic}","payload":{{"another":1}}}}\n'
    )
    code, _, err = run("import", str(file))
    assert code == 4
    assert err[0].startswith(f"error: {file} line 3: ")
    assert known in err[0]
    assert err[1] == "error: 1 imported before that; importing the file again is safe"


def test_secrets_are_exported_only_if_asked_for(run: Shell, tmp_path: Path) -> None:
    run("submit", run.topic, '{"password": "hunter2"}')
    code, out, err = run("export", "--filter", f"topic:{run.topic}")
    assert (code, "hunter2" in out[0]) == (0, False)
    assert err == ["1 job exported; 1 have masked values and cannot be imported (--reveal writes them)"]
    file = tmp_path / "jobs.ndjson"
    file.write_text("\n".join(out))
    code, _, err = run("import", str(file))
    assert code == 2
    assert err[0].startswith(f"error: {file} line 1: payload.password: is masked")
    assert "hunter2" in run("export", "--filter", f"topic:{run.topic}", "--reveal")[1][0]


def test_a_filter_in_place_of_ids_is_a_bulk_operation(run: Shell) -> None:
    jobs = run.queued(3)
    wanted = f"topic:{run.topic}"
    assert run("job", "cancel", jobs[0], "--filter", wanted)[0] == 2
    assert run("job", "cancel", jobs[0], "--yes")[0] == 2
    code, out, _ = run("job", "cancel", "--filter", wanted, "--dry-run", "-o", "name")
    assert (code, sorted(out)) == (0, sorted(jobs))
    code, _, err = run("job", "cancel", "--filter", wanted)
    assert (code, err[0].startswith("error: --yes: is required without a terminal")) == (2, True)
    code, out, _ = run("job", "cancel", "--filter", wanted, "--yes", "--reason", "a test", "-o", "json")
    operation = json.loads("\n".join(out))
    assert (code, operation["state"], operation["changed"]) == (0, "done", 3)
    assert [run.state(job) for job in jobs] == ["cancelled"] * 3
    assert run("job", "redrive", "--filter", wanted, "--payload", "{}")[0] == 2
    code, out, _ = run("bulk", "list", "--filter", run.topic, "-o", "name")
    assert (code, out) == (0, [operation["id"]])
    assert run("bulk", "list", "--filter", "no such text", "-o", "name")[1] == []


def test_an_id_of_the_wrong_form_is_named_by_its_option(run: Shell) -> None:
    form = "must be a UUID, or its first 4 or more hexadecimal digits, got 'zz'"
    for option in ("--depends-on", "--batch"):
        assert run("submit", run.topic, "{}", option, "zz") == (2, [], [f"error: {option}: {form}"])
