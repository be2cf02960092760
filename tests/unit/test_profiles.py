"""Profiles: a private file of servers and tokens, and which of flag, variable, profile and file counts."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headgate.cli import main
from headgate.domain.errors import InvalidInput, InvalidSetting, NotFound
from headgate.ops.configuration import Configuration, read_configuration
from headgate.ops.profiles import BYTES_MAX, Profile, Profiles, profiles_file, read_profiles, write_profiles
from tests.support.shell import Shell

PROD = Profile(url="https://queue.example:7070", token="prod-token", ca="/etc/headgate/ca.pem")
TEST = Profile(url="queue.test:7070")
NAMES = ["profile", "url", "token", "ca", "cert", "key"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


@pytest.fixture
def file(environ: Mapping[str, str]) -> Path:
    path = profiles_file(environ)
    assert path is not None
    return path


def configured(environ: Mapping[str, str], folder: Path, **flags: str) -> Configuration:
    return read_configuration(flags=flags, environ=environ, folder=folder, names=NAMES)


def found(config: Configuration) -> dict[str, tuple[Any, str]]:
    """Each value that is set, and where it comes from."""
    return {name: (str(config[name]), config.values[name].where) for name in NAMES if config[name] is not None}


def test_the_file_is_private_from_its_first_byte_and_is_read_as_written(file: Path) -> None:
    known = Profiles().saved("test", TEST).saved("prod.eu-1", PROD)
    before = os.umask(0)
    try:
        write_profiles(file, known)
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert read_profiles(file) == known
    assert [path.name for path in file.parent.iterdir()] == ["profiles.toml"]


def test_what_a_killed_command_has_left_does_not_prevent_the_next_one(file: Path) -> None:
    file.parent.mkdir(parents=True)
    (file.parent / f"{file.name}.{os.getpid()}").write_text("half a file of a process that had this id")
    write_profiles(file, Profiles().saved("prod", PROD))
    assert read_profiles(file).profiles == {"prod": PROD}
    assert [path.name for path in file.parent.iterdir()] == ["profiles.toml"]


@pytest.mark.skipif(os.name == "nt", reason="is about the folders of other systems")
def test_a_folder_of_the_configuration_counts_if_it_is_absolute() -> None:
    environ = {"HOME": "/home/ana", "XDG_CONFIG_HOME": "config"}
    assert profiles_file(environ) == Path("/home/ana/.config/headgate/profiles.toml")
    assert profiles_file(environ | {"XDG_CONFIG_HOME": "/etc/ana"}) == Path("/etc/ana/headgate/profiles.toml")


def test_a_file_that_others_can_read_is_refused(file: Path) -> None:
    write_profiles(file, Profiles().saved("prod", PROD))
    file.chmod(0o644)
    with pytest.raises(InvalidSetting, match=r"accessible to users other than its owner .*; run: chmod 600"):
        read_profiles(file)


def test_every_character_of_a_value_is_read_as_written(file: Path) -> None:
    odd = "".join(map(chr, range(1, 256))) + '\u2028\U0001f600"'
    known = Profiles().saved("prod", Profile(url="a:1", token=odd))
    write_profiles(file, known)
    assert read_profiles(file) == known


def test_a_file_of_the_greatest_size_is_read_and_a_larger_one_refused(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("#" * BYTES_MAX)
    file.chmod(0o600)
    assert read_profiles(file) == Profiles()
    file.write_text("#" * (BYTES_MAX + 1))
    with pytest.raises(InvalidSetting, match=r"is larger than 1,048,576 bytes"):
        read_profiles(file)


def test_the_current_profile_is_one_that_is_there(file: Path) -> None:
    known = Profiles().saved("test", TEST).saved("prod", PROD)
    assert known.without("test").current == "prod"
    assert known.without("prod").current == ""
    file.parent.mkdir(parents=True)
    file.write_text("current = 'gone'\n[profiles.a]\nurl = 'a:1'\n")
    file.chmod(0o600)
    assert read_profiles(file).current == ""


@pytest.mark.parametrize(
    "text",
    [
        "profiles = 3",
        "[profiles.a]\ntoken = 't'",
        "[profiles.a]\nurl = 'a:1'\ntenant = 'x'",
        "[profiles.a]\nurl = 7",
        "[profiles",
        "\x00",
    ],
)
def test_a_file_that_is_not_one_of_ours_is_named_in_the_error(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(InvalidSetting, match=r"profiles\.toml: "):
        read_profiles(file)


def test_without_a_file_there_are_no_profiles(file: Path) -> None:
    assert read_profiles(file) == Profiles()
    assert read_profiles(None) == Profiles()
    with pytest.raises(NotFound):
        Profiles().using("prod")


def test_the_current_profile_counts_before_the_file_and_as_a_whole(
    environ: dict[str, str], file: Path, tmp_path: Path
) -> None:
    (tmp_path / "headgate.toml").write_text('[client]\nurl = "file.example:1"\ntoken = "file-token"\n')
    (tmp_path / "headgate.toml").chmod(0o600)
    assert found(configured(environ, tmp_path))["token"][0] == "file-token"
    write_profiles(file, Profiles().saved("test", TEST))
    # It has no token: that of the file is for another server.
    assert found(configured(environ, tmp_path)) == {
        "profile": ("test", str(file)),
        "url": ("queue.test:7070", "profile test"),
    }
    write_profiles(file, Profiles().saved("prod", PROD))
    assert found(configured(environ, tmp_path)) == {
        "profile": ("prod", str(file)),
        "url": ("https://queue.example:7070", "profile prod"),
        "token": ("prod-token", "profile prod"),
        "ca": ("/etc/headgate/ca.pem", "profile prod"),
    }


def test_a_token_of_a_profile_is_sent_to_no_other_server(environ: dict[str, str], file: Path, tmp_path: Path) -> None:
    write_profiles(file, Profiles().saved("prod", PROD))
    by_variable = configured({**environ, "HEADGATE_URL": "127.0.0.1:7070"}, tmp_path)
    assert found(by_variable) == {"url": ("127.0.0.1:7070", "HEADGATE_URL")}
    by_flag = configured(environ, tmp_path, url="127.0.0.1:7070")
    assert found(by_flag) == {"url": ("127.0.0.1:7070", "--url")}
    named = configured({**environ, "HEADGATE_URL": "127.0.0.1:7070", "HEADGATE_PROFILE": "prod"}, tmp_path)
    assert found(named) == {"profile": ("prod", "HEADGATE_PROFILE"), "url": ("127.0.0.1:7070", "HEADGATE_URL")}


def test_a_profile_that_a_flag_names_counts_before_variables(
    environ: dict[str, str], file: Path, tmp_path: Path
) -> None:
    write_profiles(file, Profiles().saved("prod", PROD).saved("test", TEST))
    exported = {**environ, "HEADGATE_URL": "127.0.0.1:7070", "HEADGATE_TOKEN": "local-token"}
    assert found(configured(exported, tmp_path, profile="prod"))["url"] == (PROD.url, "profile prod")
    assert found(configured(exported, tmp_path, profile="prod"))["token"] == ("prod-token", "profile prod")
    # It has no token: that of the environment is for another server.
    assert "token" not in found(configured(exported, tmp_path, profile="test"))
    # A token that is given with the command counts before all.
    assert found(configured(exported, tmp_path, profile="test", token="given"))["token"] == ("given", "--token")


def test_a_token_of_the_environment_counts_before_that_of_the_current_profile(
    environ: dict[str, str], file: Path, tmp_path: Path
) -> None:
    write_profiles(file, Profiles().saved("prod", PROD))
    config = configured({**environ, "HEADGATE_TOKEN": "of-ci"}, tmp_path)
    assert found(config)["token"] == ("of-ci", "HEADGATE_TOKEN")
    assert found(config)["url"] == (PROD.url, "profile prod")


def test_a_profile_beside_an_address_and_an_unknown_one_are_refused(
    environ: dict[str, str], file: Path, tmp_path: Path
) -> None:
    write_profiles(file, Profiles().saved("prod", PROD))
    with pytest.raises(InvalidInput, match="--profile: cannot be given together with --url"):
        configured(environ, tmp_path, profile="prod", url="a:1")
    with pytest.raises(InvalidInput, match=r"there is no profile 'prd'; did you mean prod\?"):
        configured(environ, tmp_path, profile="prd")
    with pytest.raises(InvalidSetting, match="HEADGATE_PROFILE: there is no profile 'other'; create it"):
        configured({**environ, "HEADGATE_PROFILE": "other"}, tmp_path)


@pytest.fixture
def run(environ: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.delenv("HEADGATE_URL", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", environ["XDG_CONFIG_HOME"])
    return Shell(capsys)


def test_profiles_are_saved_chosen_listed_and_removed_and_no_token_is_printed(
    run: Shell, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("profile", "list").out.startswith("no profiles; create one: headgate profile login")
    for name, token in (("prod", "secret-1\n"), ("test", "")):
        monkeypatch.setattr("sys.stdin", io.StringIO(token))
        said = run("profile", "login", name, "--url", f"{name}.example:7070", "--no-check")
        assert (said.code, said.err) == (0, "")
        assert said.out == f"profile {name} is saved in {file}, and in use\n"
    assert read_profiles(file).profiles["prod"].token == "secret-1"
    assert run("profile", "list", "-o", "name").out.split() == ["prod", "test"]
    assert run("profile", "use", "prod").out == "profile prod is in use: prod.example:7070\n"
    for format_ in ("table", "wide", "json", "ndjson", "yaml"):
        listed = run("profile", "list", "-o", format_).out
        assert "prod.example:7070" in listed
        assert "secret-1" not in listed
    assert "token     saved" in run("profile", "show").out
    assert run("profile", "remove", "prod").out == "profile prod is removed\n"
    assert read_profiles(file).current == ""
    assert "secret-1" not in file.read_text()
    assert run("profile", "use", "prod").code == 3
    assert run("profile", "use").out == "no profile is in use\n"


def test_a_token_cannot_be_given_on_the_command_line(run: Shell) -> None:
    said = run("profile", "login", "prod", "--url", "a:1", "--token", "secret")
    assert said.code == 2
    assert "unknown option: --token" in said.err


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "x" * 65, "ä"])
def test_a_name_that_a_shell_or_a_file_could_misread_is_refused(run: Shell, name: str) -> None:
    assert main(["profile", "login", "--url", "a:1", "--no-check", "--", name]) == 2


def test_a_wrong_address_is_refused_before_the_token_is_asked_for(run: Shell, file: Path) -> None:
    said = run("profile", "login", "prod", "--url", "ftp://a")
    assert said.code == 2
    assert said.err.startswith("error: url: is not an address")
    assert not file.exists()
