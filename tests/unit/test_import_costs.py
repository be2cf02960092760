"""What a process does not need, it does not import: making dataclasses is a third of the start of a command."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("program", "unneeded"),
    [
        (
            "from headgate import Headgate; Headgate('127.0.0.1:1').admin",
            ("headgate.domain.views", "headgate.sdk.admin.webhooks", "headgate.sdk.admin.workers"),
        ),
        ("import headgate.server", ("joserfc", "cryptography", "headgate.sdk.admin")),
        ("import headgate.cli.serve_process", ("cyclopts", "headgate.cli.command")),
    ],
    ids=["client", "server", "process of a server"],
)
def test_a_process_imports_nothing_that_it_may_never_use(program: str, unneeded: tuple[str, ...]) -> None:
    code = f"import sys\n{program}\nprint([name for name in {unneeded!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_every_name_of_the_administration_is_found_and_listed() -> None:
    from headgate.sdk import admin

    assert all(getattr(admin, name).__name__ == name for name in admin.__all__)
    assert set(admin.__all__) <= set(dir(admin))
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = admin.Nothing  # type: ignore[attr-defined]
