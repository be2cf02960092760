"""The pytest plugin: fixtures for apps that use Headgate. Nothing is imported or started before a test asks for one.

- `headgate_server`, once for the session: a real server (`LocalServer`).
- `headgate_app`: the app that the setting `headgate_app` names, attached to it as a tenant of its own (`AttachedApp`).
- `headgate_box`: the same app in memory (`Box`).

    [tool.pytest.ini_options]
    headgate_app = "shop.app:hg"
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headgate.sdk.app import Headgate
    from headgate.testing import AttachedApp, Box, LocalServer

_SETTING = "headgate_app"
_DATABASE = "HEADGATE_TEST_DATABASE_URL"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(_SETTING, 'the Headgate app under test, as "package.module:name"', default="")


@pytest.fixture(scope="session")
def headgate_server() -> Iterator[LocalServer]:
    """A real server for the session, on the database of HEADGATE_TEST_DATABASE_URL or an embedded PostgreSQL."""
    from headgate.testing.server import LocalServer

    with LocalServer(os.environ.get(_DATABASE, "").strip() or None) as server:
        yield server


@pytest.fixture
def headgate_app(request: pytest.FixtureRequest, headgate_server: LocalServer) -> Iterator[AttachedApp]:
    """The app of the setting `headgate_app` on the real server, with no jobs of other tests."""
    with headgate_server.attach(_app(request.config)) as attached:
        yield attached


@pytest.fixture
def headgate_box(request: pytest.FixtureRequest) -> Iterator[Box]:
    """The app of the setting `headgate_app` in memory."""
    with _app(request.config).testing() as box:
        yield box


def _app(config: pytest.Config) -> Headgate:
    from importlib import import_module

    from headgate.sdk.app import Headgate

    place = str(config.getini(_SETTING))
    module, colon, name = place.partition(":")
    if not colon or not module or not name:
        raise pytest.UsageError(
            f'the setting {_SETTING} must name your app as "package.module:name", got "{place}"; '
            "or use hg.testing() and headgate_server.attach(hg) in a fixture of your own"
        )
    try:
        app: object = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # one that the app itself imports
        raise pytest.UsageError(
            f'the setting {_SETTING} is "{place}", and there is no module "{error.name}" on the path; for an app in '
            'the folder of pyproject.toml set pythonpath = ["."] in [tool.pytest.ini_options], or install your package'
        ) from error
    for part in name.split("."):
        app = getattr(app, part, None)
    if not isinstance(app, Headgate):
        raise pytest.UsageError(f'the setting {_SETTING} is "{place}", which is no Headgate')
    return app
