"""Topic policies over a real server: files, schemas at submit, stand-bys, and the page, exactly as printed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate import Headgate
from headgate.sdk.errors import SubmitRefused
from tests.support.database import Server
from tests.support.howto import HOWTO, printed, program
from tests.support.server import ServerProcess
from tests.support.shell import Shell
from tests.support.waiting import until_async
from tests.support.wire import Wire, served

PAGE = "topic-policy.md"


@pytest.fixture(scope="module")
def server(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with served(postgres, template, tmp_path_factory.mktemp("policies")) as (server, _):
        yield server


@pytest.fixture
def headgate(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Shell:
    monkeypatch.setenv("HEADGATE_URL", server.address)
    monkeypatch.chdir(tmp_path)
    return Shell(capsys)


def said(headgate: Shell, line: str) -> str:
    code, out, err = headgate(*line.split())
    assert (code, err) == (0, ""), err
    return out


def test_the_page_runs_as_printed(headgate: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = re.findall(r"^```toml\n(.*?)^```", (HOWTO / PAGE).read_text(), flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "policies.toml").write_text(file)
    dry_run = "topic apply -f policies.toml --dry-run"
    assert said(headgate, dry_run) == printed(PAGE, f"headgate {dry_run}")
    done = said(headgate, "topic apply -f policies.toml")
    assert done.startswith("send-email: 7 changes, version 0 -> 1\n")
    assert said(headgate, "topic apply -f policies.toml") == printed(PAGE, "headgate topic apply -f policies.toml")
    export = "topic export nightly-report --versions"
    assert said(headgate, export) == printed(PAGE, f"headgate {export}")
    code, out, err = headgate("submit", "send-email", '{"to": 3}')
    assert (code, out, err) == (2, "", printed(PAGE, """headgate submit send-email '{"to": 3}'"""))
    capsys.readouterr()
    exec(compile(program(PAGE), PAGE, "exec"), {"__name__": "__main__"})  # noqa: S102 - the page's own program
    assert capsys.readouterr().out == printed(PAGE, "python app.py")


def test_an_exported_file_applies_as_no_change_and_json_says_the_same(headgate: Shell, tmp_path: Path) -> None:
    document: dict[str, Any] = {
        "topics": {"exported": {"rate": "5/1s:2", "lease": "45s", "payload_schema": {"type": ["object", "null"]}}}
    }
    (tmp_path / "first.json").write_text(json.dumps(document))
    (applied,) = json.loads(said(headgate, "topic apply -f first.json -o json"))
    assert (applied["topic"], applied["before_version"], applied["version"]) == ("exported", 0, 1)
    assert {one["setting"]: one["after"] for one in applied["changes"]} == document["topics"]["exported"]
    for form in ("toml", "json"):
        (tmp_path / f"again.{form}").write_text(said(headgate, f"topic export exported --versions --format {form}"))
        assert said(headgate, f"topic apply -f again.{form} --prune") == "exported: no changes\n"
    (version,) = json.loads(said(headgate, "topic history exported -o json"))
    assert (version["version"], version["verb"]) == (1, "apply_topic")


def test_nothing_of_a_file_is_applied_if_one_topic_is_refused(headgate: Shell, tmp_path: Path) -> None:
    text = "[topics.first]\nmax_attempts = 3\n[topics.second]\n\npayload_schema = '{\"type\": 3}'\n"
    (tmp_path / "bad.toml").write_text(text)
    code, out, err = headgate("topic", "apply", "-f", "bad.toml")
    assert (code, out) == (2, "")
    assert "error: bad.toml line 5, topics.second.payload_schema: is not a usable JSON Schema at /type" in err
    assert headgate("topic", "get", "first").code == 3
    (tmp_path / "old.toml").write_text("[topics.third]\nversion = 4\nmax_attempts = 3\n")
    code, _, err = headgate("topic", "apply", "-f", "old.toml")
    assert code == 4
    assert 'old.toml line 2, topics.third.version: topic "third" is at version 0, not 4' in err
    assert headgate("topic", "apply", "-f", "missing.toml").code == 2


async def test_a_payload_that_does_not_match_is_refused_on_every_call(server: ServerProcess) -> None:
    async with Headgate(server.address) as hg:
        schema = {"type": "object", "required": ["to"], "properties": {"to": {"type": "string"}}}
        await hg.admin.topics.apply("checked", payload_schema=schema)
        with pytest.raises(SubmitRefused, match="payload/to") as caught:
            await hg.submit("checked", {"to": 3})
        assert caught.value.reported == "payload_mismatch"
        with pytest.raises(SubmitRefused, match="payload"):
            await hg.admin.schedules.put("checked", "checked", every=3600, payload={"to": 3})
        handle = await hg.submit("checked", {"to": "ada"})
        assert (await hg.get(handle.id)).state == "pending"


async def test_a_stand_by_is_told_and_shown(server: ServerProcess) -> None:
    async with Headgate(server.address) as hg, Wire(server.address) as wire:
        await hg.admin.topics.apply("single", max_consumers=1)
        async with wire.worker("first") as first:
            await first.ready(1, "single")
            await wire.submit("single")
            await first.take(1)
            async with wire.worker("second") as second:
                await second.ready(1, "single")

                async def waits() -> bool:
                    found = {one.worker: one.standby for one in await hg.admin.workers.list()}
                    return found.get("second") == ("single",) and found.get("first") == ()

                await until_async(waits, "the second waits")
                info = await hg.admin.topics.get("single")
                assert (info.consumers, info.standby) == (1, 1)
                await wire.submit("single")
                await first.close()
                assert len(await second.take(1)) == 1
