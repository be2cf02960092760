"""Bugs planted on purpose: each must turn its invariant red, or the checker is not worth its green.

    python -m tests.fault.lab.mutants [--only NAME,NAME]

A mutant is a patch under `tests/fault/mutants`; its first lines say what it does, and either which invariant it must
break (`red`) and which run shows it (`run`), or which test must fail (`test`): for what no caller ever sees, such as a
wake that comes a second later, and for races that need both hands. It is applied to a copy of this tree, whose code and
tests are what runs there: a child finds the copy before anything installed. The tree as it is goes first, through every
run that a chosen mutant names, and must be green there.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.fault.lab.process import ROOT, environ

FOLDER: Final = ROOT / "tests" / "fault" / "mutants"
GIT: Final = shutil.which("git") or "git"
RUN_SECONDS: Final = 170
TRIES: Final = 2
"""A planted race may be missed once."""
_VERDICT = re.compile(r"^verdict: VIOLATED (?P<red>.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One planted bug. It has a `test`, or `red` and `run`."""

    name: str
    what: str
    red: str
    run: str
    test: str
    patch: Path

    @property
    def shown_by(self) -> str:
        """What must be red."""
        return self.test.rpartition("::")[2] if self.test else self.red


def mutants() -> list[Mutant]:
    """All there are, by name."""
    return [_read(path) for path in sorted(FOLDER.glob("*.patch"))]


def _read(path: Path) -> Mutant:
    head = dict(line.split(": ", 1) for line in path.read_text().split("\n\n", 1)[0].splitlines())
    return Mutant(
        name=path.stem, what=head["what"], red=head.get("red", ""), run=head.get("run", ""), test=head.get("test", ""),
        patch=path,
    )  # fmt: skip


def applies(mutant: Mutant, tree: Path) -> str:
    """Empty if the patch still fits the tree; else what does not."""
    found = subprocess.run(
        [GIT, "apply", "--check", str(mutant.patch)], cwd=tree, capture_output=True, text=True, check=False
    )
    return found.stderr if found.returncode else ""


def verdict(tree: Path, scenario: str, *, seed: int) -> tuple[list[str], str]:
    """The invariants that are red after one run in that tree, and all it printed. A run that fails is `failed`."""
    code, text = _started(tree, "tests.fault.lab", "--only", scenario, "--seed", str(seed))
    if found := _VERDICT.search(text):
        return found["red"].split(), text
    return ([] if code == 0 else ["failed"]), text


def tested(tree: Path, test: str) -> tuple[bool, str]:
    """Whether a test fails in that tree (and not: cannot be run), and all it printed."""
    code, text = _started(tree, "pytest", "-q", "-x", "-p", "no:cacheprovider", test)
    if code not in (0, 1):
        raise RuntimeError(f"{test} could not be run:\n{text[-2_000:]}")
    return code == 1, text


def _started(tree: Path, *arguments: str) -> tuple[int, str]:
    run = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=tree,
        env={**environ(), "PYTHONPATH": f"{tree / 'src'}:{tree}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        text, _ = run.communicate(timeout=RUN_SECONDS)
    except BaseException as error:
        run.terminate()  # it cleans up behind itself
        text, _ = run.communicate(timeout=60)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return 1, f"did not end within {RUN_SECONDS} s\n{text}"
    return run.returncode, text


def copied(mutant: Mutant | None, folder: Path) -> Path:
    """A copy of this tree with the bug planted."""
    tree = folder / (mutant.name if mutant is not None else "unchanged")
    for part in ("src", "tests"):
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__", "*.history.jsonl"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    if mutant is not None:
        subprocess.run([GIT, "apply", str(mutant.patch)], cwd=tree, check=True)
    return tree


def caught(mutant: Mutant, folder: Path) -> bool:
    """Run it; True if its invariant is red, or its test fails."""
    tree = copied(mutant, folder)
    began = time.monotonic()
    red: list[str] = []
    text = ""
    if mutant.test:
        failed, text = tested(tree, mutant.test)
        red = [mutant.shown_by] if failed else []
    else:
        for seed in range(1, TRIES + 1):
            red, text = verdict(tree, mutant.run, seed=seed)
            if mutant.red in red:
                break
    word = "caught" if mutant.shown_by in red else "MISSED"
    took = time.monotonic() - began
    print(f"{word:7} {mutant.name:28} {mutant.red:4} red: {' '.join(red) or 'none':24} {took:5.0f} s  {mutant.what}")
    if word == "MISSED":
        print(text[-4_000:])
    sys.stdout.flush()
    shutil.rmtree(tree, ignore_errors=True)
    return word == "caught"


def main(arguments: Sequence[str] | None = None) -> int:
    """The unchanged tree first, then each mutant."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.lab.mutants")
    parser.add_argument("--only", default="", help="mutants by name, separated by commas")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--skip-unchanged", action="store_true", help="trust the tree as it is")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = {name.strip() for name in chosen.only.split(",") if name.strip()}
    known = [mutant for mutant in mutants() if not names or mutant.name in names]
    if unknown := names - {mutant.name for mutant in known}:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(one.name for one in mutants())}")
    if chosen.list:
        for mutant in known:
            print(f"{mutant.name:28} {mutant.red:4} {mutant.run or mutant.test:4} {mutant.what}")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="headgate-mutants-"))
    try:
        if not chosen.skip_unchanged:
            tree = copied(None, folder)
            for run in sorted({mutant.run or mutant.test for mutant in known}):
                if "::" in run:
                    failed, text = tested(tree, run)
                else:
                    red, text = verdict(tree, run, seed=1)
                    failed = bool(red)
                print(f"{'RED' if failed else 'green':7} the tree as it is, {run}", flush=True)
                if failed:
                    print(text[-4_000:])
                    return 1
        missed = [mutant.name for mutant in known if not caught(mutant, folder)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(known) - len(missed)} of {len(known)} planted bugs were caught; missed: {' '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
