"""Writes docs/reference/openapi.json from the routes of the REST API: `make openapi`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from headgate.api.http.app import new_app
from headgate.api.http.openapi import document_bytes
from headgate.domain.release import version

TARGET = Path(__file__).parents[1] / "docs/reference/openapi.json"


def main() -> None:
    """Write the document."""
    cases = SimpleNamespace(validator=None, failed_logins=None, rates=None, version=version())
    TARGET.write_bytes(document_bytes(new_app(cast("Any", cases), dev=False)))


if __name__ == "__main__":
    main()
