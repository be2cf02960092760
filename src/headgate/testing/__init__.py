"""For tests of code that uses Headgate: handlers alone, an app in memory, or an app on a real server.

`run_inline`, `run_job` and `fake_job` run one handler. `with hg.testing() as box` keeps jobs in memory, and
`LocalServer` is a real server on a PostgreSQL of its own; the pytest plugin has both as fixtures. See
docs/howto/testing.md.

Names are loaded at their first use: pytest imports this package in every run where Headgate is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.sdk.testing import Box as Box
    from headgate.sdk.testing import BoxJob as BoxJob
    from headgate.sdk.testing import Drained as Drained
    from headgate.sdk.testing import NotDrained as NotDrained
    from headgate.sdk.testing import OutsideBox as OutsideBox
    from headgate.sdk.testing import ReportRecorder as ReportRecorder
    from headgate.sdk.testing import Run as Run
    from headgate.sdk.testing import fake_job as fake_job
    from headgate.sdk.testing import request_cancel as request_cancel
    from headgate.sdk.testing import run_inline as run_inline
    from headgate.sdk.testing import run_job as run_job
    from headgate.testing.attached import AttachedApp as AttachedApp
    from headgate.testing.server import LocalServer as LocalServer

_FOUND_IN = {"AttachedApp": "headgate.testing.attached", "LocalServer": "headgate.testing.server"}
__all__ = [
    "AttachedApp",
    "Box",
    "BoxJob",
    "Drained",
    "LocalServer",
    "NotDrained",
    "OutsideBox",
    "ReportRecorder",
    "Run",
    "fake_job",
    "request_cancel",
    "run_inline",
    "run_job",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        value: object = getattr(import_module(_FOUND_IN.get(name, "headgate.sdk.testing")), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
