"""`headgate version`: of this installation."""

from __future__ import annotations

import platform

from headgate.cli.options import Output
from headgate.cli.output import print_one
from headgate.domain.release import version


def version_command(*, output: Output = "table") -> None:
    """Show the version of this installation. `headgate status` shows those of the servers."""
    fields = {"version": version(), "python": platform.python_version()}
    print_one(
        fields, output, lambda: [f"headgate {fields['version']} (Python {fields['python']})"], name=fields["version"]
    )
