"""Failpoints: every one is known, armed by the laboratory alone, and does what its plan says."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from headgate import Headgate
from headgate.domain import failpoints
from headgate.domain.errors import OutcomeUnknown, StoreBusy, StoreUnavailable
from tests.fault.history import client, submit
from tests.fault.lab import armed
from tests.support.epochs import claims
from tests.support.server import HEADGATE, READY, LoggedProcess, ServerProcess, clean_environ
from tests.support.waiting import until
from tests.support.workers import WorkerProcess

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src/headgate").rglob("*.py"))
CALLS = {"reach", "touch"}
LANES = {"f'{call}.before_commit'", "f'{call}.after_commit'"}
"""What a lane of the store reaches around a call that has a name: `self._lanes["claim"].use("claim")`."""


# ---------------------------------------------------------------------- which there are


def _call_of_lane(node: ast.Call) -> ast.expr | None:
    """The name that a use of a lane gives to its transaction, if it gives one."""
    function = ast.unparse(node.func)
    if function.endswith(".as_tenant") and len(node.args) > 2:
        return node.args[2]
    # super().use passes on the name that its caller has given.
    return node.args[0] if function.endswith(").use") and function != "super().use" and node.args else None


def _reached() -> Iterator[tuple[str, bool, Path, int]]:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in CALLS
                and ast.unparse(node.func.value) == "failpoints.armed"
            ):
                (site,) = node.args
                if ast.unparse(site) in LANES:
                    continue
                assert isinstance(site, ast.Constant), f"{path}:{node.lineno}: a site is a literal, or nobody finds it"
                assert isinstance(site.value, str)
                yield site.value, node.func.attr == "touch", path, node.lineno
            elif isinstance(node, ast.Call) and (call := _call_of_lane(node)) is not None:
                assert isinstance(call, ast.Constant)
                for when in ("before", "after"):
                    yield f"{call.value}.{when}_commit", False, path, node.lineno


def test_the_registry_names_every_site_in_the_code_and_no_other() -> None:
    assert {site for site, *_ in _reached()} == set(failpoints.SITES)


def test_the_reference_names_every_site() -> None:
    text = (ROOT / "docs/reference/failpoints.md").read_text()
    assert dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", text, flags=re.MULTILINE)) == failpoints.SITES


def test_every_site_costs_one_look_when_nothing_is_armed() -> None:
    """Each call stands directly under `if failpoints.armed…:`."""
    for path in SOURCES:
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if "failpoints.armed." in line and path.name != "failpoints.py":
                assert lines[number - 1].strip().startswith("if failpoints.armed"), f"{path}:{number + 1}"


# ---------------------------------------------------------------------- who arms them


def test_nothing_in_the_product_arms_them() -> None:
    """No assignment but the one to None, no way round by name, and nothing of the tests is imported."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
                targets = [node.target]
            for target in targets:
                name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
                if name == "armed":
                    assert path.name == "failpoints.py", path
                    assert isinstance(node, ast.AnnAssign)
                    assert ast.unparse(node.value or ast.Pass()) == "None"
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("setattr", "vars", "globals"):
                assert "failpoints" not in ast.unparse(node), f"{path}:{node.lineno}"
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [module for module in modules if module.split(".")[0] == "tests"], path
    assert not re.search(r"environ|argv|getenv", (ROOT / "src/headgate/domain/failpoints.py").read_text())


async def test_no_variable_of_the_environment_arms_a_server(database: str, tmp_path: Path) -> None:
    plan = ";".join(f"{site}=exit" for site in failpoints.SITES)
    names = ("FAILPOINT", "FAILPOINTS", "FAULTS", "ARMED", "PLAN", "CHAOS", "DEBUG", "TEST")
    environ = dict.fromkeys(names, plan)  # with HEADGATE_ before it, it is no setting, and the server does not start
    with ServerProcess(database, folder=tmp_path, environ=environ) as server:
        async with client([server]) as hg:
            assert len(await submit(hg, "nobody", [b"1", b"2"])) == 2
        assert not server.seen("failpoint")
        assert server.terminate() == 0


# ---------------------------------------------------------------------- plans


def test_a_plan_is_read() -> None:
    rules = armed.parse("submit.*=sleep:0.5@0.25; claim.before_send=exit@#3\nsettle.after_commit=raise:40P01@once")
    assert [(rule.site, rule.action, rule.argument) for rule in rules] == [
        ("submit.*", "sleep", "0.5"),
        ("claim.before_send", "exit", ""),
        ("settle.after_commit", "raise", "40P01"),
    ]
    assert rules[0].chance == 0.25
    assert (rules[1].first, rules[1].only) == (3, True)
    assert rules[2].once


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("submit.after_commit", "site=action"),
        ("submit.after_commit=explode", "one of the actions"),
        ("submit.afterwards=exit", "no site"),
        ("submit.after_commit=sleep:long", "not a number"),
        ("submit.after_commit=exit@often", "not a number"),
        ("submit.after_commit=raise:no", "not an SQLSTATE"),
    ],
)
def test_a_bad_plan_is_refused_with_its_reason(plan: str, words: str) -> None:
    with pytest.raises(armed.BadPlanError, match=words):
        armed.parse(plan)


def test_conditions_decide_which_hits_strike() -> None:
    def strikes(condition: str, hits: int = 10) -> list[int]:
        (rule,) = armed.parse(f"submit.after_commit=exit{condition}")
        luck = random.Random("7")
        return [hit for hit in range(1, hits + 1) if rule.strikes(luck)]

    assert strikes("") == list(range(1, 11))
    assert strikes("@#3") == [3]
    assert strikes("@from#8") == [8, 9, 10]
    assert strikes("@once") == [1]
    some = strikes("@0.25", 400)
    assert 60 < len(some) < 140
    assert some == strikes("@0.25", 400)
    assert strikes("@0.25,once", 400) == some[:1]


async def test_actions_sleep_block_and_raise(tmp_path: Path) -> None:
    record = tmp_path / "firings"
    plan = """
        claim.before_send=sleep:0.5;      tick.*=block:0.01
        settle.before_commit=raise:40P01;  settle.after_commit=raise:lost
        renew.before_commit=raise:unavailable;  renew.after_commit=raise:bug"""
    laboratory = armed.Laboratory(armed.Plan(plan), seed=1, record=record, name="me")
    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:  # side by side: it sleeps, and does not block
        for _ in range(20):
            tasks.create_task(laboratory.reach("claim.before_send"))
    assert time.monotonic() - began < 20 * 0.5
    laboratory.touch("tick.after_commit")
    with pytest.raises(StoreBusy, match="40P01"):
        await laboratory.reach("settle.before_commit")
    with pytest.raises(OutcomeUnknown):
        await laboratory.reach("settle.after_commit")
    with pytest.raises(StoreUnavailable):
        laboratory.touch("renew.before_commit")
    with pytest.raises(RuntimeError):
        laboratory.touch("renew.after_commit")
    await laboratory.reach("submit.before_commit")  # nothing is planned for it
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["d"]["what"].removeprefix("failpoint ") for line in lines[20:]] == [
        "tick.after_commit",
        "settle.before_commit",
        "settle.after_commit",
        "renew.before_commit",
        "renew.after_commit",
    ]
    assert [line["n"] for line in lines] == list(range(1, len(lines) + 1))


async def test_a_plan_in_a_file_may_come_change_and_go_while_the_process_runs(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    laboratory = armed.Laboratory(armed.Plan(f"@{path}"), seed=1)
    await laboratory.reach("claim.before_send")
    fresh = tmp_path / "new"
    fresh.write_text("claim.before_send=raise:40001@#2")
    fresh.rename(path)
    await laboratory.reach("claim.before_send")
    with pytest.raises(StoreBusy):
        await laboratory.reach("claim.before_send")
    path.unlink()
    await laboratory.reach("claim.before_send")


# ---------------------------------------------------------------------- the launcher


def _armed_server(database: str, folder: Path, plan: str, *args: str, record: Path | None = None) -> LoggedProcess:
    return LoggedProcess(
        "armed",
        [
            *(sys.executable, "-m", "tests.fault.lab.armed", *(["--record", str(record)] if record else []), plan, "7"),
            *("--", "serve", "--dev", "--port", "0", *args),
        ],
        folder=folder,
        environ={**clean_environ(), "PYTHONPATH": str(ROOT), "HEADGATE_DATABASE_URL": database},
    )


def test_an_armed_server_ends_at_its_failpoint_and_logs_it(database: str, tmp_path: Path) -> None:
    record = tmp_path / "firings"
    with _armed_server(database, tmp_path, "boot.registered=exit", record=record) as server:
        assert server.wait() == armed.EXIT_CODE
        assert server.seen("failpoint site=boot.registered action=exit hit=1")
        assert not server.seen(READY)
    (line,) = [json.loads(text) for text in record.read_text().splitlines()]
    assert line["k"] == "fault"
    assert line["d"] == {"phase": "start", "what": "failpoint boot.registered", "action": "exit", "hit": 1}


def test_an_armed_server_stops_itself_and_continues_on_request(database: str, tmp_path: Path) -> None:
    with _armed_server(database, tmp_path, "boot.listening=stop@once") as server:
        server.saw("failpoint site=boot.listening")

        def state() -> str:
            return Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0]

        until(lambda: state() == "T", "it has stopped itself", within=timedelta(seconds=10))
        os.kill(server.pid, signal.SIGCONT)
        server.saw(READY)


def test_the_launcher_runs_any_other_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fault.lab.armed", "tick.*=exit", "1", "--", "--version"],
        env={**clean_environ(), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    same = subprocess.run([HEADGATE, "--version"], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == same.stdout


# ---------------------------------------------------------------------- what they showed


@pytest.mark.req("F16")
async def test_a_link_that_its_instance_has_forgotten_ends_with_its_next_beat(database: str, tmp_path: Path) -> None:
    """Its transport lives and its beats arrive: answered, they would go on forever, and its jobs would expire."""
    release = tmp_path / "release"
    with _armed_server(database, tmp_path, "beat.before_ack=forget@once", "--lease", "6") as server:
        ready = await asyncio.to_thread(server.saw, READY)
        with await asyncio.to_thread(WorkerProcess, f"127.0.0.1:{ready['port']}", folder=tmp_path) as worker:
            async with Headgate(f"127.0.0.1:{ready['port']}") as hg:
                (job,) = await submit(hg, "held", [str(release).encode()])
                await asyncio.to_thread(worker.is_connected, times=2)
                release.touch()
                assert claims(await hg.wait_result(job, timeout=20)) == 1  # its epoch: it was not run a second time
            assert server.seen("session_ended .*reason=session_forgotten")
