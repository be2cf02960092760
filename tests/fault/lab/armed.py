"""Start `headgate …`, or a Python module, with its failpoints armed. The only way there is: see domain/failpoints.py.

    python -m tests.fault.lab.armed 'submit.after_commit=exit@0.25;claim.*=sleep:5@#3' SEED -- serve --dev --port 0
    python -m tests.fault.lab.armed --record FILE @/path/of/plan SEED -- serve --dev
    python -m tests.fault.lab.armed 'worker.before_result=exit@once' SEED -m tests.support.workers ADDRESS NOTEBOOK

A plan is a list of rules, `site=action[@when,…]`; the first rule that fits a hit is carried out. `site` may have
wildcards. After an @ comes a file with the plan, which is looked at again at every hit: so a process that runs is
armed, and disarmed, at any moment.

    sleep:SECONDS    the coroutine sleeps, others go on
    block:SECONDS    the whole event loop stalls
    raise:40P01      a PostgreSQL error of that SQLSTATE, as the store gives it to its caller; `lost`: the connection
                     broke; `unavailable`: there was none; `bug`: an exception no one expects
    exit             os._exit(9), as a kill -9 at this very place
    stop             SIGSTOP to itself; a watching process sends SIGCONT
    forget           the instance forgets all sessions and keeps their transports (a zombie stream)

    @0.25            with this probability        @once      at the first hit that fits
    @#3              at the third hit             @from#3    from the third hit on

Every firing is printed to standard error, and appended to the file of --record as a line of JSON, before it happens.
The same seed and the same order of hits give the same firings.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import runpy
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import asyncpg

from headgate.dispatch.sessions import WorkerSessions
from headgate.domain import failpoints
from headgate.domain.errors import StoreUnavailable
from headgate.store.errors import translate

ACTIONS = ("sleep", "block", "raise", "exit", "stop", "forget")
EXIT_CODE = 9


class BadPlanError(ValueError):
    """A plan that cannot be read; says which rule, and why."""


@dataclass(slots=True)
class Rule:
    """One line of a plan, and how often it was hit and carried out."""

    site: str
    action: str
    argument: str = ""
    chance: float = 1.0
    first: int = 1
    only: bool = False  # at the hit `first`, and not after it
    once: bool = False
    hits: int = 0
    fired: int = field(default=0)

    def fits(self, site: str) -> bool:
        """Whether this rule is about `site`."""
        return site == self.site or fnmatchcase(site, self.site)

    def strikes(self, luck: random.Random) -> bool:
        """Count a hit, and decide."""
        self.hits += 1
        if self.hits < self.first or (self.only and self.hits > self.first) or (self.once and self.fired):
            return False
        if self.chance < 1 and luck.random() >= self.chance:
            return False
        self.fired += 1
        return True


def parse(text: str) -> list[Rule]:
    """Rules of a plan, in their order. Raises BadPlanError, also for a site that no code reaches."""
    return [_rule(part.strip()) for line in text.splitlines() for part in line.split(";") if part.strip()]


def _rule(text: str) -> Rule:
    site, equals, rest = text.partition("=")
    what, _, when = rest.partition("@")
    action, _, argument = what.partition(":")
    if not equals or action not in ACTIONS:
        raise BadPlanError(f"{text!r}: write site=action[@when], with one of the actions {', '.join(ACTIONS)}")
    if not any(fnmatchcase(known, site) for known in failpoints.SITES):
        raise BadPlanError(f"{text!r}: there is no site {site!r}; see headgate.domain.failpoints.SITES")
    rule = Rule(site=site, action=action, argument=argument)
    if action in ("sleep", "block"):
        _number(argument, text)
    if action == "raise":
        _error(argument or "40001")
    for condition in filter(None, (one.strip() for one in when.split(","))):
        if condition == "once":
            rule.once = True
        elif condition.startswith("from#"):
            rule.first = int(_number(condition[5:], text))
        elif condition.startswith("#"):
            rule.first, rule.only = int(_number(condition[1:], text)), True
        else:
            rule.chance = _number(condition, text)
    return rule


def _number(text: str, rule: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise BadPlanError(f"{rule!r}: {text!r} is not a number") from None
    if number < 0:
        raise BadPlanError(f"{rule!r}: {text} is less than 0")
    return number


class Plan:
    """The rules in force: fixed ones, or those of a file as it is now."""

    def __init__(self, text: str) -> None:
        self._file = Path(text[1:]) if text.startswith("@") else None
        self._stamp: tuple[int, int] | None = None
        self._rules = [] if self._file is not None else parse(text)

    def rules(self) -> list[Rule]:
        """The rules now. A file that is missing is no plan; one that was replaced starts to count again."""
        if self._file is not None:
            try:
                found = self._file.stat()
            except FileNotFoundError:
                self._stamp, self._rules = None, []
                return self._rules
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp != self._stamp:
                self._stamp, self._rules = stamp, parse(self._file.read_text())
        return self._rules


class Laboratory:
    """Carries out a plan; fits `headgate.domain.failpoints.Armed`."""

    def __init__(self, plan: Plan, *, seed: int | str, record: Path | None = None, name: str = "armed") -> None:
        self._plan, self._luck, self._name = plan, random.Random(str(seed)), name
        self._record = None if record is None else os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._seq = 0

    async def reach(self, site: str) -> None:
        """See Armed."""
        rule = self._struck(site)
        if rule is None:
            return
        if rule.action == "sleep":
            await asyncio.sleep(float(rule.argument))
        else:
            _act(rule, site)

    def touch(self, site: str) -> None:
        """See Armed. Sleeping is blocking here."""
        rule = self._struck(site)
        if rule is not None:
            _act(rule, site)

    def _struck(self, site: str) -> Rule | None:
        for rule in self._plan.rules():
            if rule.fits(site):
                if not rule.strikes(self._luck):
                    continue
                self._note(rule, site)
                return rule
        return None

    def _note(self, rule: Rule, site: str) -> None:
        self._seq += 1
        action = f"{rule.action}:{rule.argument}" if rule.argument else rule.action
        os.write(2, f"failpoint site={site} action={action} hit={rule.hits}\n".encode())
        if self._record is None:
            return
        # A line of a history (tests/fault/lab/history.py), which is not imported: the process must not wait for more.
        line = {
            "t": time.monotonic_ns(),
            "w": time.time_ns() // 1000,
            "p": f"{self._name}-{os.getpid()}",
            "n": self._seq,
            "k": "fault",
            "d": {"phase": "start", "what": f"failpoint {site}", "action": action, "hit": rule.hits},
        }
        os.write(self._record, (json.dumps(line) + "\n").encode())


def _act(rule: Rule, site: str) -> None:
    match rule.action:
        case "sleep" | "block":
            time.sleep(float(rule.argument))
        case "raise":
            raise _error(rule.argument or "40001", site=site)
        case "exit":
            os._exit(EXIT_CODE)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "forget":
            _forget_sessions()


def _error(code: str, *, site: str = "") -> Exception:
    words = f"failpoint {site}"
    if code == "bug":
        return RuntimeError(words)
    if code == "unavailable":
        return StoreUnavailable(words)
    if code == "lost":
        return translate(ConnectionResetError(words), writing=True)
    if len(code) != 5:
        raise BadPlanError(f"raise:{code}: not an SQLSTATE, nor lost, unavailable or bug")
    # The driver's own way from a server's message to an exception.
    return translate(asyncpg.PostgresError.new({"S": "ERROR", "C": code, "M": words}), writing=True)


_ALL_SESSIONS: list[WorkerSessions] = []


def _forget_sessions() -> None:
    for sessions in _ALL_SESSIONS:
        sessions._all.clear()
        sessions._by_worker.clear()


def _note_sessions() -> None:
    """Know every `WorkerSessions` that is made from now on. The collector does not show them: a server freezes all."""
    made = WorkerSessions.__init__

    def make_and_note(sessions: WorkerSessions) -> None:
        made(sessions)
        _ALL_SESSIONS.append(sessions)

    WorkerSessions.__init__ = make_and_note  # type: ignore[method-assign, assignment]


def install(plan: Plan, *, seed: int | str, record: Path | None = None, name: str = "armed") -> Laboratory:
    """Arm this process."""
    laboratory = Laboratory(plan, seed=seed, record=record, name=name)
    _note_sessions()
    failpoints.armed = laboratory
    return laboratory


def main(arguments: Sequence[str] | None = None) -> int:
    """Arm, then be the command line of Headgate, or another module."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.lab.armed", description=__doc__)
    parser.add_argument("--record", type=Path, help="append a line of JSON for every firing")
    parser.add_argument("--name", default="armed", help="who fires, in the record")
    parser.add_argument("-m", dest="module", default="", help="run this module instead of the headgate command")
    parser.add_argument("plan")
    parser.add_argument("seed")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    chosen = parser.parse_args(arguments)
    command: list[str] = chosen.command
    module: str = chosen.module
    if command[:1] == ["-m"] and len(command) > 1:  # after the seed it is not an option of ours any more
        module, command = command[1], command[2:]
    elif command[:1] == ["--"]:
        command = command[1:]
    install(Plan(chosen.plan), seed=chosen.seed, record=chosen.record, name=chosen.name)
    if module:
        sys.argv = [module, *command]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return 0
    from headgate.cli import main as headgate

    sys.argv = ["headgate", *command]
    return headgate(command)


if __name__ == "__main__":
    sys.exit(main())
