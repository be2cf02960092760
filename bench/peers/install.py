"""Every library in an environment of its own: build/peers/NAME, made once, renewed when its pins change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.peers.peer import Peer, Store

ROOT = Path("build/peers").absolute()
PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 300


class NotInstallable(Exception):
    """This library cannot be had here; the text says why."""


@dataclass(frozen=True, slots=True)
class Installed:
    """How to run a peer's program, and what was installed."""

    command: tuple[str, ...]
    versions: dict[str, str]


def install(peer: Peer) -> Installed:
    """Make the environment, or find it made."""
    if peer.store is Store.HEADGATE:
        from importlib.metadata import version

        names = ("headgate", "grpcio", "asyncpg", "uvloop")
        return Installed((sys.executable, str(PROGRAMS / peer.program)), {name: version(name) for name in names})
    if peer.program.endswith(".go"):
        return _go(peer)
    return _node(peer) if peer.program.endswith(".mjs") else _python(peer)


def _python(peer: Peer) -> Installed:
    folder = ROOT / peer.name
    python = folder / "bin" / "python"
    if not _is_ready(peer):
        shutil.rmtree(folder, ignore_errors=True)
        _run(find_python(peer.python), "-m", "venv", str(folder))
        _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.requirements)
        _mark_ready(peer)
    listed = _run(str(python), "-m", "pip", "list", "--disable-pip-version-check", "--format", "json")
    found = {row["name"].lower(): row["version"] for row in json.loads(listed)}
    names = {one.partition("==")[0].partition("[")[0].lower() for one in peer.requirements} | {"redis"} & found.keys()
    versions = {name: found[name] for name in sorted(names)}
    versions["python"] = _run(str(python), "-c", "import platform; print(platform.python_version())").strip()
    return Installed((str(python), str(PROGRAMS / peer.program)), versions)


def _node(peer: Peer) -> Installed:
    folder = ROOT / peer.name
    if not _is_ready(peer):
        npm = shutil.which("npm")
        if npm is None:
            raise NotInstallable("npm is not installed on this machine")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "package.json").write_text('{"name": "peer", "private": true}\n')
        # The runtime comes from npm too, since these libraries ask for a newer one than systems have.
        _run(npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *peer.requirements, folder=folder)
        _mark_ready(peer)
    for name in (peer.program, "kit.mjs"):  # a program is copied there, because Node looks for packages beside it
        shutil.copy(PROGRAMS / name, folder / name)
    versions = {}
    for one in peer.requirements:
        name = one.rpartition("@")[0]
        package = json.loads((folder / "node_modules" / name / "package.json").read_text())
        versions["node" if name.startswith("node-") else name] = str(package["version"])
    node = folder / "node_modules" / peer.requirements[-1].rpartition("@")[0] / "bin" / "node"
    return Installed((str(node), str(folder / peer.program)), versions)


def _go(peer: Peer) -> Installed:
    """Built from the program's folder, which holds go.mod and go.sum; the ordinary client fetches the modules."""
    go = shutil.which("go")
    if go is None:
        raise NotInstallable("no Go")
    source, program = (PROGRAMS / peer.program).parent, ROOT / peer.name / "program"
    program.parent.mkdir(parents=True, exist_ok=True)
    _run(go, "build", "-mod=readonly", "-o", str(program), ".", folder=source)
    listed = _run(
        go, "list", "-m", "-f", "{{.Path}} {{.Version}}", peer.package, "github.com/jackc/pgx/v5", folder=source
    )
    versions = {path.split("/")[2]: version.removeprefix("v") for path, version in map(str.split, listed.splitlines())}
    versions["go"] = _run(go, "env", "GOVERSION").strip().removeprefix("go")
    return Installed((str(program),), versions)


def find_python(oldest: tuple[int, int]) -> str:
    """An interpreter of at least this version: ours, or one on PATH or in pyenv's folder."""
    if sys.version_info >= oldest:
        return sys.executable
    newer = [f"python3.{minor}" for minor in range(oldest[1], oldest[1] + 5)]
    for name in newer:
        found = shutil.which(name)
        if found and subprocess.run([found, "-c", ""], capture_output=True, timeout=20, check=False).returncode == 0:
            return found
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for name in newer:
        for found_at in sorted(pyenv.glob(f"{name.removeprefix('python')}.*/bin/python")):
            return str(found_at)
    raise NotInstallable(f"needs Python {oldest[0]}.{oldest[1]}; only {sys.version.split()[0]} was found")


def _is_ready(peer: Peer) -> bool:
    mark = ROOT / peer.name / ".ready"
    return mark.exists() and mark.read_text() == "\n".join(peer.requirements)


def _mark_ready(peer: Peer) -> None:
    (ROOT / peer.name / ".ready").write_text("\n".join(peer.requirements))


def _run(*command: str, folder: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=True)
    except subprocess.TimeoutExpired as slow:
        raise NotInstallable(f"{Path(command[0]).name} took longer than {SECONDS} s") from slow
    except subprocess.CalledProcessError as failed:
        lines = [line for line in failed.stderr.strip().splitlines() if "error" in line.lower()]
        raise NotInstallable((lines or failed.stderr.strip().splitlines() or ["no reason given"])[-1]) from failed
    return done.stdout
