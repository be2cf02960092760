"""`make fuzz MINUTES=5 SEED=1`: half of the time on every call of a real server, half on every reader of text.

The same seed makes the same examples. What fails is printed with its seed and its bytes, and the lane ends with 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import count
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz import parsers
from tests.fuzz.calls import Method, all_methods
from tests.fuzz.messages import frames
from tests.fuzz.server import Target, running_target
from tests.support.database import running_server

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / "build/fuzz"
EXAMPLES = 40
LEAST_SECONDS = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    seconds = chosen.minutes * 60 / 2
    _say(f"fuzzing for {chosen.minutes:g} minutes from seed {chosen.seed}")
    fuzz_calls(seconds, chosen.seed)
    return fuzz_readers(seconds, chosen.seed)


def fuzz_calls(seconds: float, first: int) -> None:
    """Rounds over all calls until the time is over; raises at the first that is the server's fault."""
    deadline, methods, answers = time.monotonic() + seconds, all_methods(), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="headgate-fuzz-") as folder, running_server() as postgres:
        template = postgres.create_template()
        try:
            with running_target(postgres, template, Path(folder)) as target:
                for number in count(first * 1_000):
                    for method in methods:
                        if time.monotonic() > deadline:
                            _say(f"calls: {sum(answers.values())} made of {len(methods)}; {dict(answers)}")
                            return
                        _round(target, method, number, answers)
        finally:
            postgres.drop(template)


def _round(target: Target, method: Method, number: int, answers: Counter[str]) -> None:
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @seed(number)
    @given(raw=st.lists(frames(method.request), min_size=1, max_size=4 if method.many_in else 1))
    def fuzz(raw: list[bytes]) -> None:
        answers[target.caller.ask(method, raw).name] += 1

    try:
        fuzz()
        target.check_alive()
    except BaseException:
        _say(f"{method.name} failed in the round of seed {number}")
        raise


def fuzz_readers(seconds: float, first: int) -> int:
    """Each reader under atheris for its share; says loudly if that is not to be had here."""
    if not _installed():
        _say("SKIPPED: atheris cannot be installed here; readers were fuzzed by the tests only")
        return 0
    share = max(LEAST_SECONDS, int(seconds / len(parsers.TARGETS)))
    packages = importlib.util.find_spec("google.protobuf")
    assert packages is not None
    assert packages.origin is not None
    site = Path(packages.origin).parents[2]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "src", site)))}
    failed = []
    for name in parsers.TARGETS:
        command = [str(ENVIRONMENT / "bin/python"), "-m", "tests.fuzz.atheris_lane", name, f"-seed={first}"]
        bounds = [f"-max_total_time={share}", "-max_len=4096", "-timeout=10", f"-artifact_prefix={ENVIRONMENT}/{name}-"]
        ran = subprocess.run(
            [*command, *bounds], cwd=ROOT, env=environ, capture_output=True, timeout=share + 120, check=False
        )
        text = (ran.stdout + ran.stderr).decode(errors="replace")
        runs = [line for line in text.splitlines() if line.startswith(("Done ", "stat::", "SUMMARY"))]
        _say(f"{name}: {runs[-1] if runs else 'no summary'}")
        if ran.returncode:
            failed.append(name)
            sys.stderr.write(text[-4_000:])
    if failed:
        _say(f"failed: {', '.join(failed)}; their input is in {ENVIRONMENT}")
    return 1 if failed else 0


def _installed() -> bool:
    """atheris in an environment of its own: it is no dependency of ours."""
    python = ENVIRONMENT / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True, timeout=120)
    if subprocess.run([python, "-c", "import atheris"], capture_output=True, timeout=60, check=False).returncode:
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "atheris"]
        done = subprocess.run(install, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            sys.stderr.write(done.stderr[-2_000:])
            return False
    return True


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
