"""Commands with several ids: the good ones are carried out and shown, each bad one is named; exit codes tell which."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
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
