"""An environment outside the clone with nothing but the wheel and what it declares to need; made without a network.

`pip` there is a small script: it builds with the packages of this environment instead of downloading hatchling, and
installs without an index. The dependencies are linked from this environment before, exactly those that the metadata of
the wheel and its extras name, so that pip finds them satisfied, and fails if one was forgotten.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_PIP = """#!/bin/sh
export PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1
case "$1" in
    wheel) shift; exec "{python}" -m pip wheel --no-build-isolation "$@" ;;
    *) exec "{python}" -m pip --python "{target}" "$@" ;;
esac
"""


class EmptyEnvironment:
    """A virtual environment with the declared dependencies of a project, and not the project itself."""

    def __init__(self, folder: Path, requirements: Sequence[str]) -> None:
        self.folder = folder
        venv.EnvBuilder(system_site_packages=False, with_pip=False, symlinks=True).create(folder)
        self.bin = folder / "bin"
        self.packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        self.linked = sorted(self._link(found) for found in _closure(requirements))
        pip = self.bin / "pip"
        pip.write_text(_PIP.format(python=sys.executable, target=self.bin / "python"))
        pip.chmod(0o755)

    def environ(self, base: dict[str, str]) -> dict[str, str]:
        """`base` with this environment activated, and nothing of ours on its path."""
        kept = {name: value for name, value in base.items() if not name.startswith("PYTHON")}
        return {**kept, "PATH": f"{self.bin}{os.pathsep}{base['PATH']}", "VIRTUAL_ENV": str(self.folder)}

    def run(self, *command: str, cwd: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Run one command of it to its end."""
        return subprocess.run(
            command, cwd=cwd, env=self.environ(environ), capture_output=True, text=True, timeout=120, check=False
        )

    def _link(self, found: Distribution) -> str:
        root = Path(str(found.locate_file("")))
        tops = {Path(str(file)).parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        for top in tops:
            place = self.packages / top
            if place.is_symlink() or place.exists():  # a namespace package, such as google
                for inner in (root / top).iterdir():
                    _merge(place, root / top, inner)
            elif (root / top).exists():
                place.symlink_to(root / top)
        return canonicalize_name(found.metadata["Name"])


def _merge(place: Path, source: Path, inner: Path) -> None:
    if place.is_symlink():
        old = place.resolve()
        if old == source.resolve():
            return
        place.unlink()
        place.mkdir()
        for one in old.iterdir():
            (place / one.name).symlink_to(one)
    target = place / inner.name
    if not target.is_symlink() and not target.exists():
        target.symlink_to(inner)


def _closure(requirements: Sequence[str]) -> Iterator[Distribution]:
    """What has to be installed for these, on this machine."""
    left = [(Requirement(text), frozenset[str]()) for text in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    given: set[str] = set()
    while left:
        wanted, extras = left.pop()
        if wanted.marker is not None and not any(wanted.marker.evaluate({"extra": one}) for one in extras or {""}):
            continue
        name, own = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if name == "headgate" or (name, own) in seen:  # an extra that includes another one
            continue
        seen.add((name, own))
        try:
            found = distribution(name)
        except PackageNotFoundError as error:
            raise AssertionError(f"{wanted} is declared, and not installed here: run `make lock`") from error
        if name not in given:
            given.add(name)
            yield found
        left += [(Requirement(text), own | {""}) for text in found.requires or ()]
