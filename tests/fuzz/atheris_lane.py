"""One reader under atheris, which knows which input reached new code. Run by `make fuzz` with its own Python.

python -m tests.fuzz.atheris_lane NAME -seed=1 -max_total_time=60 …       (further arguments are libFuzzer's)
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]  # installed by the lane itself

with atheris.instrument_imports(include=["headgate"]):
    from tests.fuzz import parsers


def main() -> None:
    name = sys.argv.pop(1)
    with tempfile.TemporaryDirectory(prefix="headgate-fuzz-") as folder:
        for number, seed in enumerate(parsers.SEEDS.get(name, ())):
            Path(folder, str(number)).write_bytes(seed)
        atheris.Setup([*sys.argv, folder], lambda raw: parsers.run(name, raw))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
