"""Generates src/headgate/wire from proto/; with --check, fails if what is checked in is not what would be generated."""

from __future__ import annotations

import filecmp
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROTO, WIRE = Path("proto"), Path("src/headgate/wire")


def generate(target: Path) -> None:
    """Generate messages, typed stubs and services into a package of ours."""
    sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as raw:
        plugin = Path(sys.executable).parent / "protoc-gen-mypy"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", f"--plugin=protoc-gen-mypy={plugin}"]
        subprocess.run([*command, f"--python_out={raw}", f"--mypy_out=quiet:{raw}", *sources], check=True)
        target.mkdir(parents=True, exist_ok=True)
        (target / "__init__.py").write_text('"""Generated from proto/ by `make wire`. Never edited."""\n')
        for path in sorted(Path(raw).rglob("*_pb2.py*")):
            text = path.read_text()
            # protoc knows only its own package tree; ours is headgate.wire.
            text = re.sub(r"^from headgate\.v1 import", "from headgate.wire import", text, flags=re.MULTILINE)
            text = re.sub(r"\bheadgate\.v1\.(\w+_pb2)\b", r"headgate.wire.\1", text)
            text = text.replace("import headgate.v1", "import headgate.wire")
            (target / path.name).write_text(text)


def main() -> int:
    """Write, or compare."""
    if "--check" not in sys.argv:
        generate(WIRE)
        return 0
    with tempfile.TemporaryDirectory() as fresh:
        generate(Path(fresh))
        names = sorted(path.name for path in Path(fresh).iterdir())
        present = sorted(path.name for path in WIRE.iterdir() if path.is_file())
        _, differ, missing = filecmp.cmpfiles(fresh, WIRE, names, shallow=False)
        if differ or missing or names != present:
            print(f"wire: src/headgate/wire is not what proto/ says ({[*differ, *missing]}); run 'make wire'")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
