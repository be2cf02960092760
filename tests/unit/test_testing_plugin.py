"""The pytest plugin: it costs nothing where it is not used, and says what is missing where it is."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate import Headgate
from headgate.testing import LocalServer, plugin
from headgate.testing.server import LocalServerFailed

ROOT = Path(__file__).parents[2]
hg = Headgate("127.0.0.1:1")


class Config:
    def __init__(self, app: str) -> None:
        self.app = app

    def getini(self, name: str) -> str:
        assert name == "headgate_app"
        return self.app


def test_the_plugin_is_declared_to_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"headgate": plugin.__name__}


def test_a_run_that_does_not_use_the_plugin_loads_nothing_of_headgate() -> None:
    code = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        "import headgate.testing.plugin\n"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['headgate', 'headgate.testing', 'headgate.testing.plugin']"


def test_the_setting_names_the_app() -> None:
    config: Any = Config(f"{__name__}:hg")
    assert plugin._app(config) is hg


@pytest.mark.parametrize("place", ["", "app", ":hg", "app:"])
def test_a_setting_of_another_form_says_what_to_write(place: str) -> None:
    config: Any = Config(place)
    with pytest.raises(pytest.UsageError, match=r'must name your app as "package\.module:name"'):
        plugin._app(config)


def test_a_setting_that_names_something_else_is_an_error() -> None:
    config: Any = Config("json:dumps")
    with pytest.raises(pytest.UsageError, match='is "json:dumps", which is no Headgate'):
        plugin._app(config)


@pytest.mark.parametrize(
    ("place", "missing"),
    [("absent:hg", "absent"), ("absent.app:hg", "absent"), ("headgate.absent:hg", "headgate.absent")],
)
def test_a_module_that_is_not_on_the_path_says_which_setting_adds_it(place: str, missing: str) -> None:
    config: Any = Config(place)
    with pytest.raises(pytest.UsageError, match=rf'no module "{missing}" on the path.*pythonpath = \["\."\]'):
        plugin._app(config)


def test_a_module_that_the_app_does_not_find_is_an_error_of_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "importing_absent.py").write_text("import absent\n")
    monkeypatch.syspath_prepend(tmp_path)
    config: Any = Config("importing_absent:hg")
    with pytest.raises(ModuleNotFoundError, match="absent"):
        plugin._app(config)


def test_names_are_reachable_and_others_are_not() -> None:
    import headgate.testing as public

    assert {name for name in public.__all__ if not hasattr(public, name)} == set()
    assert "LocalServer" in dir(public)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        public.nothing  # noqa: B018


def test_a_server_that_cannot_start_shows_its_log() -> None:
    with pytest.raises(LocalServerFailed, match=r"(?s)the server for tests ended:.*error: ") as failed:
        LocalServer("postgresql://nobody@127.0.0.1:1/none")
    assert "Traceback" not in str(failed.value)


def test_a_server_for_tests_has_no_settings_of_the_user_and_no_tenant_of_another_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environs: list[Mapping[str, str]] = []

    def started(_: object, *, env: Mapping[str, str], **__: object) -> Any:
        environs.append(env)
        ready = io.StringIO(json.dumps({"url": "127.0.0.1:1", "database_url": "postgresql://one"}))
        return SimpleNamespace(stdin=io.StringIO(), stdout=ready, wait=lambda *_: 0)

    monkeypatch.setattr("subprocess.Popen", started)
    for name in ("HEADGATE_DATABASE_URL", "HEADGATE_LEASE", "https_proxy", "HEADGATE_POSTGRES_BIN", "LANG"):
        monkeypatch.setenv(name, "of the user")
    with LocalServer() as one, LocalServer("postgresql://given") as two:
        tenants = [one.new_tenant(), one.new_tenant(), two.new_tenant()]
    assert len(set(tenants)) == 3
    for environ, url in zip(environs, (None, "postgresql://given"), strict=True):
        assert environ.get("HEADGATE_DATABASE_URL") == url
        assert environ["HEADGATE_POSTGRES_BIN"] == environ["LANG"] == "of the user"
        assert not environ.keys() & {"HEADGATE_LEASE", "https_proxy"}
