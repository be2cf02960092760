"""Ctrl-C and the end of input, at moments that a command does not expect."""

from __future__ import annotations

import subprocess
import sys

import pytest

INTERRUPTED = """
import sys


class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt


sys.meta_path.insert(0, Interrupted())
from headgate.cli import main

sys.exit(main(["version"]))
"""


@pytest.mark.parametrize("module", ["cyclopts", "headgate.cli.version"])
def test_ctrl_c_while_a_command_starts_shows_no_traceback(module: str) -> None:
    code = INTERRUPTED.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
