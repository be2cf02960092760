"""A child of a worker that dies around its result: what it said counts once, and for its own job only."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from headgate.sdk.worker import process_slots
from headgate.sdk.worker.process_pipe import Run, ToChild
from tests.support.fake_server import WorkerPeer, until
from tests.support.waiting import until as waiting_until
from tests.unit.test_sdk_slots import alive, failures, working


def told(peer: WorkerPeer) -> Counter[bytes]:
    """How often each job's end was reported."""
    ids = Counter(raw for outcomes in peer.frames("outcomes") for raw in outcomes.ids)
    return ids + Counter(one.id for one in peer.others())


def pid_of(peer: WorkerPeer, raw: bytes) -> int:
    return int(json.loads(peer.completed()[raw])["pid"])


def body(how: str, **more: str) -> bytes:
    return json.dumps({"how": how, **more}).encode()


@pytest.mark.parametrize("how", ["kill", "exit"])
async def test_a_result_that_was_sent_before_the_child_died_counts_once(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The death is seen first, as when it comes between the looks at the pipe and at the process."""

    def death_first(objects: list[Any], timeout: float | None = None) -> list[Any]:
        sentinels = [one for one in objects if isinstance(one, int)]
        return list(wait(sentinels if armed else objects, timeout))

    armed = True
    monkeypatch.setattr(process_slots, "wait", death_first)
    async with working("last-words", processes=1) as (peer, _):
        (raw,) = peer.deliver("last-words", body(how), attempt=2)
        await until(lambda: told(peer)[raw], "its end is reported")
        assert json.loads(peer.completed()[raw])["attempt"] == 2
        armed = False
        (after,) = peer.deliver("last-words", body(""))
        await until(lambda: told(peer)[after], "the next is done")
        assert pid_of(peer, after) != pid_of(peer, raw)
        assert told(peer) == {raw: 1, after: 1}
        assert peer.others() == []


async def test_a_child_that_dies_before_its_result_fails_that_job_and_no_other() -> None:
    async with working("last-words", processes=1) as (peer, _):
        first, dies, last = peer.deliver("last-words", body(""), body("before"), body(""))
        await until(lambda: len(told(peer)) == 3, "all have ended")
        assert told(peer) == {first: 1, dies: 1, last: 1}
        assert set(failures(peer)) == {dies}
        assert failures(peer)[dies][0] == "ProcessDied"
        assert pid_of(peer, first) != pid_of(peer, last)


@pytest.mark.parametrize("gone", [False, True])
async def test_a_job_handed_to_a_child_that_is_dying_was_not_begun_and_runs_in_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gone: bool
) -> None:
    send, doomed = process_slots._Slot._send, list[int]()

    def dying(slot: process_slots._Slot, message: ToChild) -> None:
        if isinstance(message, Run) and doomed:
            pid = doomed.pop()
            # It lives and has a pipe, but reads nothing more; or it has just died.
            os.kill(pid, signal.SIGKILL if gone else signal.SIGSTOP)
            if gone:
                waiting_until(lambda: not alive(pid), "it is gone")
            try:
                send(slot, message)
            finally:
                os.kill(pid, signal.SIGKILL)
        else:
            send(slot, message)

    monkeypatch.setattr(process_slots._Slot, "_send", dying)
    async with working("last-words", processes=1) as (peer, _):
        (raw,) = peer.deliver("last-words", body(""))
        await until(lambda: told(peer)[raw], "a child is there")
        doomed.append(pid_of(peer, raw))
        (after,) = peer.deliver("last-words", body(""))
        await until(lambda: told(peer)[after], "the next is done")
        assert failures(peer) == {}
        assert pid_of(peer, after) != pid_of(peer, raw)
        (begun,) = peer.deliver("last-words", body("before", runs=str(tmp_path / "runs")))
        await until(lambda: told(peer)[begun], "one that was begun is not run again")
        assert failures(peer)[begun][0] == "ProcessDied"
        assert (tmp_path / "runs").read_text() == "x"
        assert told(peer) == {raw: 1, after: 1, begun: 1}


async def test_a_thread_that_a_handler_left_behind_does_not_speak_for_the_next_job() -> None:
    async with working("left-behind", processes=1) as (peer, _):
        (first,) = peer.deliver("left-behind", b'{"first":true}')
        await until(lambda: told(peer)[first], "the first is done")
        (second,) = peer.deliver("left-behind", b'{"first":false}')

        def wishes() -> list[tuple[bytes, int]]:
            return [(one.id, one.lease_seconds) for beat in peer.frames("beat") for one in beat.extensions]

        await until(lambda: (second, 60) in wishes(), "its own wish came")
        assert wishes() == [(second, 60)]
        assert {one.progress.done for beat in peer.frames("beat") for one in beat.progress} <= {2}
        peer.say(cancel=peer.held(second))
        await until(lambda: told(peer)[second], "the second is done")
