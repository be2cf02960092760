"""`make check-pyright`: what pyright says of the SDK's accepted uses and of all code in the documentation."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

from tests.support.documented import ROOT, write_documented

PYRIGHT = ROOT / "build/pyright/bin/pyright"
FOLDER = ROOT / "build/documented"


def main() -> int:
    """Write the files, run pyright over them; its exit code is ours."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    write_documented(FOLDER)
    for path in (ROOT / "tests/typing").glob("accepted*.py"):
        shutil.copy(path, FOLDER)
    config = FOLDER / "pyrightconfig.json"
    config.write_text(json.dumps({"include": ["."], "typeCheckingMode": "standard"}))
    command = [str(PYRIGHT), "--project", str(config), "--pythonpath", sys.executable]
    return subprocess.run(command, cwd=FOLDER, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
