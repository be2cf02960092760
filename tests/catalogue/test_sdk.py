"""Every case that can be made with the SDK, async and blocking: a typed error, before the network where it can be."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.sdk import Headgate, VersionMismatch
from tests.catalogue.rows import CASES
from tests.catalogue.table import Case, Submit, World

ROWS = sorted({case.row for case in CASES if case.sdk is not None})
LONGEST = 500


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("row", ROWS)
async def test_what_is_wrong_is_an_error_of_its_kind(row: int, blocking: bool, hg: Headgate, world: World) -> None:
    wrong = []
    for case in (one for one in CASES if one.row == row and one.sdk is not None):
        try:
            answer = await (asyncio.to_thread(_blocking, case, hg, world) if blocking else _async(case, hg, world))
        except HeadgateError as error:
            said = str(error)
            missing = [word for word in (case.says if case.sdk_says is None else case.sdk_says) if word not in said]
            if not isinstance(error, case.raises) or missing or len(said) > LONGEST or "\n" in said:
                wrong.append(f"{case.name}: {type(error).__name__} {said[:600]!r}, without {missing}")
            said.encode()
        except Exception as error:  # noqa: BLE001 - anything else that escapes is what this test is to find
            wrong.append(f"{case.name}: {type(error).__name__} escaped: {error}")
        else:
            wrong.append(f"{case.name}: accepted, gave {answer!r}")
    assert not wrong, "\n" + "\n".join(wrong)


async def _async(case: Case, hg: Headgate, world: World) -> object:
    assert case.sdk is not None
    return await (case.sdk.send(hg) if isinstance(case.sdk, Submit) else case.sdk(hg, world))


def _blocking(case: Case, hg: Headgate, world: World) -> object:
    assert case.sdk is not None
    if isinstance(case.sdk, Submit):
        return case.sdk.send_blocking(hg.sync)
    call: Any = case.sdk(hg, world)
    return hg.sync.wait(call)


def test_what_cannot_be_a_handler_is_refused_when_it_is_registered() -> None:
    hg = Headgate("127.0.0.1:1")

    @hg.job("taken")
    async def first() -> None: ...

    async def second() -> None: ...

    for topic, function, says in (
        ("taken", second, '"taken" is handled by'),
        ("other", 5, "needs a function"),
        ("other", "print", "needs a function"),
        ("no topic", second, "1 to 200"),
    ):
        with pytest.raises(InvalidInput) as refused:
            hg.register(topic, function)  # type: ignore[arg-type]
        assert says in str(refused.value), refused.value
    with pytest.raises(InvalidInput, match="process"):
        hg.register("other", second, run_in="process")
    assert list(hg.tasks) == ["taken"]


async def test_a_handler_that_does_its_worst_costs_its_own_job_only(unharmed_worker: Headgate) -> None:
    """Returns what no one can send, raises what ends processes, leaves threads behind: the next job is run."""
    hg = unharmed_worker
    release = threading.Event()

    @hg.job("worst")
    def worst(how: str) -> Any:
        match how:
            case "unsendable":
                return {1: {2, 3}, "x": object()}
            case "exit":
                raise SystemExit(3)
            case "interrupt":
                raise KeyboardInterrupt
            case "thread":
                threading.Thread(target=release.wait, daemon=True).start()
                return "left a thread"
            case _:
                return "fine"

    worker = hg.worker(concurrency=1, grace=1)
    running = asyncio.create_task(worker.run())
    try:
        for how in ("unsendable", "exit", "interrupt"):
            handle = await worst.with_options(max_attempts=1).submit(how)
            with pytest.raises(HeadgateError, match="is dead: "):
                await handle.result(10)
        assert await (await worst.submit("thread")).result(10) == "left a thread"
        assert await (await worst.submit("well")).result(10) == "fine"
        assert not running.done()
    finally:
        release.set()
        worker.stop()
        await asyncio.wait((running,), timeout=10)


async def test_a_server_of_another_release_is_named(stranger: str) -> None:
    """A server that knows none of the calls: the error names both, and what to do."""
    async with Headgate(stranger) as hg:
        with pytest.raises(VersionMismatch, match=r"does not know this call of headgate-python/\S+ .*same release"):
            await hg.admin.status()
        with pytest.raises(VersionMismatch):
            await hg.submit("mail", timeout=5)
